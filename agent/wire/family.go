package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// maxFamily is the most characters that a family has.
const maxFamily = 32

// GPUFamily derives the family of a GPU, the gpuModel of pools, from the name
// that NVML gives: "NVIDIA H100 80GB HBM3" and "NVIDIA H100 PCIe" are "H100".
//
// Names are compared by whole words, whatever their case; words end at blanks,
// hyphens and underscores, so that the labels of GPU feature discovery
// ("NVIDIA-H100-80GB-HBM3") read alike. A leading NVIDIA, Tesla or GRID is
// passed over, and so is the profile at the end of a MIG device's name. The
// rest has to be a model of the table below with nothing behind it but words
// that do not change the model (memory, form factor). Any other name is
// unknown: vGPU types ("NVIDIA A10-24Q"), laptop parts, boards that tell only
// their number ("NVIDIA PG509-210"), names that a table cut short ("…").
//
// An unknown name gives a family of its own, its words joined by hyphens where
// they fit; the same name always gives the same one, and never one of the table.
// The result has 1 to 32 letters, digits and hyphens.
func GPUFamily(product string) string {
	words, whole := gpuWords(product)
	if whole {
		if family := knownFamily(dropMIG(words)); family != "" {
			return family
		}
	}
	return unknownFamily(product, words, whole)
}

// GPUFamilyAliased is GPUFamily with the operator's names for products that
// come first. An alias stands for the product whose words it has, whatever
// their case; of two such aliases the one spelt as the product wins, then the
// first in order. An alias to something that is no legal family does not count.
func GPUFamilyAliased(product string, aliases map[string]string) string {
	if family := aliases[product]; LegalGPUFamily(family) {
		return family
	}
	var found []string
	key := aliasKey(product)
	for name, family := range aliases {
		if aliasKey(name) == key && LegalGPUFamily(family) {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return aliases[slices.Min(found)]
	}
	return GPUFamily(product)
}

// LegalGPUFamily reports whether s can be a family: 1 to 32 letters, digits
// and hyphens.
func LegalGPUFamily(s string) bool {
	if s == "" || len(s) > maxFamily {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return c != '-' && !alphanumeric(c) })
}

// families lists the models in words, each with its family. The names are
// those of NVIDIA's open-gpu-kernel-modules README ("Compatible GPUs") and,
// before Turing, of the proprietary driver's README. A model that is not here
// still gets a family of its own; a row is needed only where several names are
// one family, or where the family is not the name's words.
var families = makeFamilies(`
M4 M6 M10 M40 M60 P4 P6 P40 P100 V100 V100S T4 T400 T600 T1000
A2 A10 A10G A10M A16 A30 A30X A40 A100 A100X A800 AX800
L2 L4 L20 L40 L40S L40G
H20 H100 H200 H800 GH200
B100 B200 B300 GB10 GB200 GB300
`, map[string]string{
	"H20 3e":    "H20",
	"TITAN V":   "TITAN-V",
	"TITAN RTX": "TITAN-RTX",

	"Quadro RTX 8000": "Quadro-RTX-8000",
	"Quadro RTX 6000": "Quadro-RTX-6000",
	"Quadro RTX 5000": "Quadro-RTX-5000",
	"Quadro RTX 4000": "Quadro-RTX-4000",

	"RTX A6000": "RTX-A6000",
	"RTX A5500": "RTX-A5500",
	"RTX A5000": "RTX-A5000",
	"RTX A4500": "RTX-A4500",
	"RTX A4000": "RTX-A4000",
	"RTX A2000": "RTX-A2000",
	"RTX A1000": "RTX-A1000",
	"RTX A400":  "RTX-A400",

	"RTX 6000 Ada":     "RTX-6000-Ada",
	"RTX 5880 Ada":     "RTX-5880-Ada",
	"RTX 5000 Ada":     "RTX-5000-Ada",
	"RTX 4500 Ada":     "RTX-4500-Ada",
	"RTX 4000 Ada":     "RTX-4000-Ada",
	"RTX 4000 SFF Ada": "RTX-4000-SFF-Ada",
	"RTX 2000 Ada":     "RTX-2000-Ada",
	"RTX 2000E Ada":    "RTX-2000E-Ada",

	"RTX PRO 6000": "RTX-PRO-6000",
	"RTX PRO 5000": "RTX-PRO-5000",
	"RTX PRO 4500": "RTX-PRO-4500",
	"RTX PRO 4000": "RTX-PRO-4000",
	"RTX PRO 2000": "RTX-PRO-2000",

	"GeForce RTX 3090":      "RTX-3090",
	"GeForce RTX 3090 Ti":   "RTX-3090-Ti",
	"GeForce RTX 4080":      "RTX-4080",
	"GeForce RTX 4090":      "RTX-4090",
	"GeForce RTX 4090 D":    "RTX-4090-D",
	"GeForce RTX 5080":      "RTX-5080",
	"GeForce RTX 5090":      "RTX-5090",
	"GeForce RTX 5090 D":    "RTX-5090-D",
	"GeForce RTX 5090 D v2": "RTX-5090-D-v2",
})

// makeFamilies maps the lower-case words of each model, with a blank between,
// to its family. The plain names are their own family.
func makeFamilies(plain string, named map[string]string) map[string]string {
	all := make(map[string]string)
	for _, name := range strings.Fields(plain) {
		all[strings.ToLower(name)] = name
	}
	for name, family := range named {
		all[strings.ToLower(name)] = family
	}
	return all
}

// knownFamilies are the families of the table in lower case.
var knownFamilies = func() map[string]bool {
	known := make(map[string]bool)
	for _, family := range families {
		known[strings.ToLower(family)] = true
	}
	return known
}()

// knownFamily looks up the longest run of words that is a model and has only
// qualifiers behind it. It is "" if there is none.
func knownFamily(words []string) string {
	for n := min(len(words), 5); n > 0; n-- {
		family, ok := families[strings.ToLower(strings.Join(words[:n], " "))]
		if ok && !slices.ContainsFunc(words[n:], func(w string) bool { return !qualifies(w, family) }) {
			return family
		}
	}
	return ""
}

// qualifies reports whether a word behind the model leaves the model as it is.
func qualifies(word, family string) bool {
	word = strings.ToLower(word)
	switch word {
	case "pcie", "nvl", "fhhl", "dgxs", "lc", "ac", "active", "oem", "generation",
		"shared": // which GPU feature discovery puts behind a time-sliced GPU
		return true
	case "blackwell", "workstation", "server", "edition", "max", "q", "sff":
		return strings.HasPrefix(family, "RTX-PRO-")
	}
	for _, form := range []string{"sxm", "nvl", "hbm"} { // SXM4, NVL16, HBM3e
		if rest, ok := strings.CutPrefix(word, form); ok {
			return digits(strings.TrimSuffix(rest, "e")) || form == "sxm" && rest == ""
		}
	}
	memory, ok := strings.CutSuffix(strings.TrimSuffix(word, "b"), "g") // 80GB, 144G
	return ok && digits(memory)
}

func digits(s string) bool {
	return s != "" && len(s) <= 4 && !strings.ContainsFunc(s, func(c rune) bool { return c < '0' || c > '9' })
}

// gpuWords splits a product name and takes the maker's words off its front.
// It reports false when the name is cut short or has characters that no
// product name has, so that its words are not the whole of it.
func gpuWords(product string) (words []string, whole bool) {
	name := strings.Trim(product, " \t\r\n\x00")
	words = strings.FieldsFunc(name, func(c rune) bool {
		return !alphanumeric(c) && c != '.' && c != '+'
	})
	whole = !strings.HasSuffix(name, "...") && !strings.ContainsFunc(name, func(c rune) bool {
		return !alphanumeric(c) && !strings.ContainsRune(" -_.+", c)
	})
	if len(words) > 1 && strings.EqualFold(words[0], "NVIDIA") {
		words = words[1:]
	}
	if len(words) > 1 && (strings.EqualFold(words[0], "Tesla") || strings.EqualFold(words[0], "GRID")) {
		words = words[1:]
	}
	return words, whole
}

// dropMIG takes the profile off the name of a MIG device, such as
// "A100-SXM4-40GB MIG 3g.20gb". The family is that of the GPU it is cut from.
func dropMIG(words []string) []string {
	for i := 1; i+1 < len(words); i++ {
		if strings.EqualFold(words[i], "MIG") && strings.Contains(words[i+1], "g.") {
			return words[:i]
		}
	}
	return words
}

// unknownFamily joins the words of a name that is not in the table. Where
// that would lose something, or be a family of the table, a part of the
// name's hash sets it apart.
func unknownFamily(product string, words []string, whole bool) string {
	slug := strings.Join(words, "-")
	if whole && LegalGPUFamily(slug) && !knownFamilies[strings.ToLower(slug)] {
		return slug
	}
	slug = strings.NewReplacer(".", "-", "+", "-").Replace(slug)
	sum := sha256.Sum256([]byte(product))
	mark := hex.EncodeToString(sum[:4])
	slug = strings.Trim(slug[:min(len(slug), maxFamily-len(mark)-1)], "-")
	if slug == "" {
		slug = "unknown"
	}
	return slug + "-" + mark
}

func aliasKey(name string) string {
	words, _ := gpuWords(name)
	return strings.ToLower(strings.Join(words, " "))
}

func alphanumeric(c rune) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
