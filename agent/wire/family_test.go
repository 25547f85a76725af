package wire

import (
	"strings"
	"testing"
)

// Names as drivers report them (open-gpu-kernel-modules README, release
// 595.45.04, and the lists of older proprietary drivers).
const driverNames = `
Tesla M10                                            = M10
Tesla M60                                            = M60
Tesla M6                                             = M6
Tesla P4                                             = P4
Tesla P40                                            = P40
Tesla P100-PCIE-12GB                                 = P100
Tesla P100-PCIE-16GB                                 = P100
Tesla P100-SXM2-16GB                                 = P100
Tesla V100-SXM2-16GB                                 = V100
Tesla V100-FHHL-16GB                                 = V100
Tesla V100-PCIE-16GB                                 = V100
Tesla V100-SXM2-32GB                                 = V100
Tesla V100-PCIE-32GB                                 = V100
Tesla V100S-PCIE-32GB                                = V100S
Tesla T4                                             = T4
Quadro RTX 8000                                      = Quadro-RTX-8000
Quadro RTX 6000                                      = Quadro-RTX-6000
Quadro RTX 5000                                      = Quadro-RTX-5000
Quadro RTX 4000                                      = Quadro-RTX-4000
NVIDIA TITAN RTX                                     = TITAN-RTX
NVIDIA T1000                                         = T1000
NVIDIA T1000 8GB                                     = T1000
NVIDIA T600                                          = T600
NVIDIA T400 4GB                                      = T400
NVIDIA A100-SXM4-40GB                                = A100
NVIDIA A100-PCIE-40GB                                = A100
NVIDIA A100-SXM4-80GB                                = A100
NVIDIA A100 80GB PCIe                                = A100
NVIDIA A100-SXM-64GB                                 = A100
NVIDIA A800-SXM4-40GB                                = A800
NVIDIA A800-SXM4-80GB                                = A800
NVIDIA A800 80GB PCIe                                = A800
NVIDIA A800 80GB PCIe LC                             = A800
NVIDIA A800 40GB Active                              = A800
NVIDIA AX800                                         = AX800
NVIDIA A100X                                         = A100X
NVIDIA A30X                                          = A30X
NVIDIA A30                                           = A30
NVIDIA A40                                           = A40
NVIDIA A10                                           = A10
NVIDIA A10G                                          = A10G
NVIDIA A10M                                          = A10M
NVIDIA A16                                           = A16
NVIDIA A2                                            = A2
NVIDIA RTX A6000                                     = RTX-A6000
NVIDIA RTX A5500                                     = RTX-A5500
NVIDIA RTX A5000                                     = RTX-A5000
NVIDIA RTX A4500                                     = RTX-A4500
NVIDIA RTX A4000                                     = RTX-A4000
NVIDIA RTX A2000                                     = RTX-A2000
NVIDIA RTX A2000 12GB                                = RTX-A2000
NVIDIA RTX A1000                                     = RTX-A1000
NVIDIA RTX A400                                      = RTX-A400
NVIDIA L4                                            = L4
NVIDIA L2                                            = L2
NVIDIA L40                                           = L40
NVIDIA L40S                                          = L40S
NVIDIA L20                                           = L20
NVIDIA RTX 6000 Ada Generation                       = RTX-6000-Ada
NVIDIA RTX 5880 Ada Generation                       = RTX-5880-Ada
NVIDIA RTX 5000 Ada Generation                       = RTX-5000-Ada
NVIDIA RTX 4500 Ada Generation                       = RTX-4500-Ada
NVIDIA RTX 4000 Ada Generation                       = RTX-4000-Ada
NVIDIA RTX 4000 SFF Ada Generation                   = RTX-4000-SFF-Ada
NVIDIA RTX 2000 Ada Generation                       = RTX-2000-Ada
NVIDIA RTX 2000E Ada Generation                      = RTX-2000E-Ada
NVIDIA GeForce RTX 4090                              = RTX-4090
NVIDIA GeForce RTX 4090 D                            = RTX-4090-D
NVIDIA GeForce RTX 5090                              = RTX-5090
NVIDIA GeForce RTX 5090 D                            = RTX-5090-D
NVIDIA GeForce RTX 5090 D v2                         = RTX-5090-D-v2
NVIDIA H100 80GB HBM3                                = H100
NVIDIA H100 PCIe                                     = H100
NVIDIA H100 NVL                                      = H100
NVIDIA H100                                          = H100
NVIDIA H800                                          = H800
NVIDIA H800 PCIe                                     = H800
NVIDIA H800 NVL                                      = H800
NVIDIA H20                                           = H20
NVIDIA H20-3e                                        = H20
NVIDIA H20 NVL16                                     = H20
NVIDIA H200                                          = H200
NVIDIA H200 NVL                                      = H200
NVIDIA GH200 120GB                                   = GH200
NVIDIA GH200 480GB                                   = GH200
NVIDIA GH200 144G HBM3e                              = GH200
NVIDIA B200                                          = B200
NVIDIA GB200                                         = GB200
NVIDIA B300 SXM6 AC                                  = B300
NVIDIA GB300                                         = GB300
NVIDIA GB10                                          = GB10
NVIDIA RTX PRO 6000 Blackwell Workstation Edition    = RTX-PRO-6000
NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition = RTX-PRO-6000
NVIDIA RTX PRO 6000 Blackwell Server Edition         = RTX-PRO-6000
NVIDIA RTX PRO 5000 Blackwell                        = RTX-PRO-5000
NVIDIA RTX PRO 5000 72GB Blackwell                   = RTX-PRO-5000
NVIDIA RTX PRO 4500 Blackwell                        = RTX-PRO-4500
NVIDIA RTX PRO 4000 Blackwell                        = RTX-PRO-4000
NVIDIA RTX PRO 4000 Blackwell SFF Edition            = RTX-PRO-4000
NVIDIA RTX PRO 2000 Blackwell                        = RTX-PRO-2000
`

// Names that no driver gives, which other tools and documents write.
const otherNames = `
H100-SXM5-80GB                     = H100
h100-sxm5-80gb                     = H100
NVIDIA-H100-80GB-HBM3              = H100
NVIDIA-A100-SXM4-40GB-MIG-3g.20gb  = A100
NVIDIA-A100-SXM4-40GB-SHARED       = A100
NVIDIA-RTX-6000-Ada-Generation     = RTX-6000-Ada
NVIDIA A100-SXM4-40GB MIG 3g.20gb  = A100
NVIDIA H100 80GB HBM3 MIG 1g.10gb+me = H100
NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb-me = RTX-PRO-6000
NVIDIA H200 141GB HBM3e            = H200
NVIDIA B200 180GB HBM3e            = B200
NVIDIA A100-PCIE-80GB              = A100
NVIDIA A30-PCIE-24GB               = A30
NVIDIA T4                          = T4
NVIDIA GB300 NVL                   = GB300
A100-SXM4-80GB                     = A100
`

// Names of other things than the models they resemble. Each is its own family.
const unknownNames = `
NVIDIA A10-24Q                     = A10-24Q
NVIDIA A100-4-20C                  = A100-4-20C
GRID V100DX-16Q                    = V100DX-16Q
NVIDIA PG509-210                   = PG509-210
NVIDIA PG506-232                   = PG506-232
NVIDIA A100-PG509-200              = A100-PG509-200
NVIDIA GeForce RTX 4090 Laptop GPU = GeForce-RTX-4090-Laptop-GPU
NVIDIA RTX A2000 Laptop GPU        = RTX-A2000-Laptop-GPU
NVIDIA RTX 6000                    = RTX-6000
Quadro T1000                       = Quadro-T1000
Mock NVIDIA A100-SXM4-40GB         = Mock-NVIDIA-A100-SXM4-40GB
NVIDIA H100X                       = H100X
NVIDIA H1000                       = H1000
NVIDIA A1000                       = A1000
NVIDIA A20                         = A20
NVIDIA T40                         = T40
NVIDIA L400                        = L400
NVIDIA GB100                       = GB100
NVIDIA H                           = H
`

func pairs(t *testing.T, table string) map[string]string {
	t.Helper()
	m := make(map[string]string)
	for line := range strings.Lines(table) {
		name, family, ok := strings.Cut(line, "=")
		if ok {
			m[strings.TrimSpace(name)] = strings.TrimSpace(family)
		}
	}
	return m
}

func TestEveryDriverNameHasItsFamily(t *testing.T) {
	for name, want := range pairs(t, driverNames) {
		for _, form := range []string{name, strings.ReplaceAll(name, " ", "-"), strings.TrimPrefix(name, "NVIDIA "), name + "\x00\x00"} {
			if got := GPUFamily(form); got != want {
				t.Errorf("GPUFamily(%q) = %q, want %q", form, got, want)
			}
		}
		if !LegalGPUFamily(want) {
			t.Errorf("%q is no legal family", want)
		}
	}
}

func TestNamesOfOtherToolsHaveTheSameFamily(t *testing.T) {
	for name, want := range pairs(t, otherNames) {
		if got := GPUFamily(name); got != want {
			t.Errorf("GPUFamily(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestAnUnknownNameIsNeverANeighboursFamily(t *testing.T) {
	known := make(map[string]bool)
	for _, family := range pairs(t, driverNames) {
		known[family] = true
	}
	for name, want := range pairs(t, unknownNames) {
		got := GPUFamily(name)
		if got != want {
			t.Errorf("GPUFamily(%q) = %q, want %q", name, got, want)
		}
		if known[got] {
			t.Errorf("GPUFamily(%q) = %q, which is another model's", name, got)
		}
	}
}

func TestNamesCutShortAreUnknownAndApart(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{
		"NVIDIA A800 80G...", "NVIDIA A800 80GB PCIe...", "NVIDIA H100...", "NVIDIA RTX 5000 Ada Gene...",
		"NVIDIA H100…", "", "...", "NVIDIA", "NVIDIA ", "\x00", "H100\xff", "RTX-4090",
		"NVIDIA Something Whose Name Is Longer Than A Family", "NVIDIA Something Whose Name Is Longer Than B Family",
	} {
		got := GPUFamily(name)
		if !LegalGPUFamily(got) {
			t.Errorf("GPUFamily(%q) = %q, not a legal family", name, got)
		}
		if knownFamilies[strings.ToLower(got)] {
			t.Errorf("GPUFamily(%q) = %q, a known family", name, got)
		}
		// White space and padding around a name are not part of it.
		trimmed := strings.Trim(name, " \x00")
		if other, ok := seen[got]; ok && other != trimmed {
			t.Errorf("%q and %q are both %q", other, trimmed, got)
		}
		seen[got] = trimmed
	}
}

func TestAliases(t *testing.T) {
	aliases := map[string]string{
		"NVIDIA PG509-210":      "A100",
		"NVIDIA H100 NVL":       "H100-94GB",
		"nvidia h100 80gb hbm3": "H100-SXM",
		"NVIDIA A30":            "not a family",
		"Foo 9000":              "first",
		"foo-9000":              "second",
	}
	for name, want := range map[string]string{
		"NVIDIA PG509-210":      "A100",
		"NVIDIA-PG509-210":      "A100",
		"NVIDIA H100 NVL":       "H100-94GB",
		"NVIDIA H100 80GB HBM3": "H100-SXM",
		"NVIDIA H100 PCIe":      "H100",
		"NVIDIA A30":            "A30",
		"foo-9000":              "second",
		"FOO 9000":              "first",
		"NVIDIA L40S":           "L40S",
	} {
		if got := GPUFamilyAliased(name, aliases); got != want {
			t.Errorf("GPUFamilyAliased(%q) = %q, want %q", name, got, want)
		}
	}
	if got := GPUFamilyAliased("NVIDIA A10", nil); got != "A10" {
		t.Errorf("without aliases: %q, want A10", got)
	}
}

func FuzzGPUFamily(f *testing.F) {
	for line := range strings.Lines(driverNames + otherNames + unknownNames) {
		name, _, _ := strings.Cut(line, "=")
		f.Add(strings.TrimSpace(name))
	}
	f.Add("...")
	f.Add("\x00NVIDIA\xff H100")
	f.Fuzz(func(t *testing.T, product string) {
		family := GPUFamily(product)
		if !LegalGPUFamily(family) {
			t.Fatalf("GPUFamily(%q) = %q, not a legal family", product, family)
		}
		if again := GPUFamily(product); again != family {
			t.Fatalf("GPUFamily(%q) is once %q, once %q", product, family, again)
		}
		if knownFamilies[strings.ToLower(family)] {
			// A known family takes a word of the product that is the model.
			last := family[strings.LastIndex(family, "-")+1:]
			if !strings.Contains(strings.ToLower(product), strings.ToLower(last)) {
				t.Fatalf("GPUFamily(%q) = %q, which the name does not say", product, family)
			}
			if strings.HasSuffix(product, "...") {
				t.Fatalf("GPUFamily(%q) = %q, of a name cut short", product, family)
			}
		}
	})
}
