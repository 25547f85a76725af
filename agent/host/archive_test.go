package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var whole = cmp.AllowUnexported(Archive{})

func TestArchiveText(t *testing.T) {
	a := small()
	a.SetDocument("nvml.json", []byte("{}\n"))
	a.AddFile("/boot/odd", []byte("-- looks like a section --\nand more\n"))
	want := `A test machine.
-- nvml.json --
{}
-- base64/boot/odd --
LS0gbG9va3MgbGlrZSBhIHNlY3Rpb24gLS0KYW5kIG1vcmUK
-- base64/sys/firmware/efi/efivars/raw --
BgAAAAE=
-- dirs --
sys/bus/pci/drivers/nvidia
-- links --
etc/loop -> loop2
etc/loop2 -> loop
etc/os-release -> /usr/lib/os-release
etc/out -> ../../../../../../../proc/cmdline
etc/passwd -> /etc/passwd.real
sys/bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
sys/devices/pci0000:00/0000:00:01.0/driver -> ../../../bus/pci/drivers/nvidia
-- root/usr/lib/os-release --
ID=test
NAME="A test"
-- values --
proc/
  cmdline ro quiet
sys/devices/pci0000:00/0000:00:01.0/
  vendor 0x10de
sys/devices/system/cpu/
  broken 0-
  nohz_full   (null)
  online 0-3
`
	if diff := cmp.Diff(want, string(a.Format())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, err := ParseArchive(a.Format())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, again, whole); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestParseArchiveRefuses(t *testing.T) {
	for _, text := range []string{
		"-- root/../x --\n1\n",
		"-- root/a b --\n1\n",
		"-- base64/x --\n!\n",
		"-- values --\n../\n  x 1\n",
		"-- values --\nneither\n",
		"-- values --\na/\n   1\n",
		"-- links --\nx\n",
		"-- links --\n../x -> y\n",
		"-- dirs --\n/abs/../..\n",
		"-- else/x --\n1\n",
	} {
		if _, err := ParseArchive([]byte(text)); err == nil {
			t.Errorf("%q reads", text)
		}
	}
}

func TestUnpackKeepsToItsFolder(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	a := NewArchive("")
	a.AddLink("door", outside)
	a.AddFile("door/file", []byte("through the link\n"))
	if err := Unpack(a, filepath.Join(dir, "in")); err == nil {
		t.Error("a path that is both a link and a folder unpacks")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%v was written through a link", left)
	}
	if err := Unpack(small(), dir); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("unpacking over files gives %v", err)
	}
}

// Whatever the values of a machine are, the archive reads back as it was.
func TestArchiveRoundTrip(t *testing.T) {
	names := []string{"a", "b", "c/a", "c/b", "c/d/e", "f/g"}
	rapid.Check(t, func(t *rapid.T) {
		a := NewArchive("")
		for _, name := range names {
			if rapid.Bool().Draw(t, "file "+name) {
				a.AddFile(name, rapid.OneOf(
					rapid.SliceOf(rapid.Byte()),
					rapid.Map(rapid.StringMatching(`( |\(null\)|[0-9,-]|-- a --|\n)*`), func(s string) []byte { return []byte(s) }),
				).Draw(t, name))
			}
		}
		again, err := ParseArchive(a.Format())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a.files, again.files); diff != "" {
			t.Fatalf("(-wrote +read):\n%s", diff)
		}
	})
}

// identifiers draws one of each kind that must not get into a recording.
func identifiers(t *rapid.T) (mac, uuid, machineID, serial, address string) {
	hex := func(n int, label string) string {
		return rapid.StringMatching(fmt.Sprintf(`[1-9a-f]{%d}`, n)).Draw(t, label)
	}
	m := hex(12, "mac")
	mac = strings.Join([]string{m[:2], m[2:4], m[4:6], m[6:8], m[8:10], m[10:]}, ":")
	u := hex(32, "uuid")
	uuid = u[:8] + "-" + u[8:12] + "-" + u[12:16] + "-" + u[16:20] + "-" + u[20:]
	return mac, uuid, hex(32, "machine id"), "S" + hex(12, "serial"), "0x" + hex(16, "address")
}

func TestCaptureBlanksIdentifiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mac, uuid, machineID, serial, address := identifiers(t)
		m := small()
		m.AddFile("/proc/cmdline", []byte("ro root=UUID="+strings.ToUpper(uuid)+" BOOTIF=01-"+strings.ReplaceAll(mac, ":", "-")+
			" systemd.machine_id="+machineID+" ip=::::"+mac+" my.password="+serial+" quiet\n"))
		m.AddFile("/proc/cpuinfo", []byte("processor\t: 0\nSerial\t\t: "+serial+"\nModel\t: A\n"))
		m.AddFile("/proc/modules", []byte("nvidia 1 0 - Live "+address+"\nloop 1 0 - Live "+address+"\n"))
		m.AddFile("/proc/driver/nvidia/gpus/0000:00:01.0/information", []byte("Model: \t A\nGPU UUID: \t GPU-"+uuid+"\nSerial Number: "+serial+"\n"))
		m.AddFile("/etc/machine-id", []byte(machineID+"\n"))
		m.AddFile("/etc/hostname", []byte(serial+"\n"))
		m.AddFile("/sys/class/dmi/id/product_serial", []byte(serial+"\n"))
		m.AddFile("/sys/class/dmi/id/product_uuid", []byte(uuid+"\n"))
		m.AddFile("/sys/class/dmi/id/product_name", []byte("A server\n"))
		m.AddFile("/sys/block/sda/device/serial", []byte(serial+"\n"))
		m.AddFile("/sys/class/net/eth0/device/vendor", []byte("0x8086\n"))
		m.AddFile("/sys/class/net/eth0/address", []byte(mac+"\n"))
		m.AddFile("/boot/loader/entries/"+machineID+"-5.14.conf", []byte("options root=UUID="+uuid+"\nmachine-id "+machineID+"\n"))

		c := Capture(m.Root(), "")
		text := strings.ToLower(string(c.Format()))
		for what, id := range map[string]string{
			"a hardware address": mac, "a hardware address with hyphens": strings.ReplaceAll(mac, ":", "-"),
			"a UUID": uuid, "the machine id": machineID, "a serial number": serial, "a kernel address": address,
		} {
			if strings.Contains(text, strings.ToLower(id)) {
				t.Fatalf("%s, %s, is in the recording:\n%s", what, id, text)
			}
		}
		// What is around them stays.
		for name, want := range map[string]string{
			"/proc/cmdline":                  "ro root=UUID=00000000-0000-0000-0000-000000000000 BOOTIF=00:00:00:00:00:00 systemd.machine_id=00000000000000000000000000000000 ip=::::00:00:00:00:00:00 my.password= quiet",
			"/proc/cpuinfo":                  "processor\t: 0\nSerial\t\t:\nModel\t: A",
			"/sys/class/dmi/id/product_name": "A server",
			"/boot/loader/entries/00000000000000000000000000000000-5.14.conf": "options root=UUID=00000000-0000-0000-0000-000000000000\nmachine-id 00000000000000000000000000000000",
		} {
			if got, _ := c.Root().String(name); got != want {
				t.Fatalf("%s is %q, want %q", name, got, want)
			}
		}
	})
}

func TestCaptureKeepsLinksAndLeavesOutTheRest(t *testing.T) {
	m := small()
	m.AddFile("/etc/shadow", []byte("root:x\n"))
	m.AddFile("/sys/devices/pci0000:00/0000:00:01.0/config", []byte("secret\n"))
	m.AddFile("/usr/sbin/update-grub", []byte("#!/bin/sh\nexec grub-mkconfig\n"))
	c := Capture(m.Root(), "Why.\n")
	want := `Why.
-- dirs --
sys/bus/pci/drivers/nvidia
sys/firmware/efi
-- links --
etc/os-release -> /usr/lib/os-release
sys/bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
sys/devices/pci0000:00/0000:00:01.0/driver -> ../../../bus/pci/drivers/nvidia
-- root/usr/lib/os-release --
ID=test
NAME="A test"
-- values --
proc/
  cmdline ro quiet
sys/devices/pci0000:00/0000:00:01.0/
  vendor 0x10de
sys/devices/system/cpu/
  nohz_full   (null)
  online 0-3
usr/sbin/
  update-grub
`
	if diff := cmp.Diff(want, string(c.Format())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseArchive(f *testing.F) {
	f.Add(small().Format())
	f.Add([]byte("-- values --\na/\n  b 1\n-- links --\nc -> a\n-- dirs --\nd\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := ParseArchive(text)
		if err != nil {
			return
		}
		again, err := ParseArchive(a.Format())
		if err != nil {
			t.Fatalf("%q reads, its own text does not: %v\n%s", text, err, a.Format())
		}
		if diff := cmp.Diff(a.files, again.files); diff != "" {
			t.Fatalf("files of %q (-first +second):\n%s", text, diff)
		}
		for name := range a.files {
			_, _ = a.Root().ReadFile(name)
		}
	})
}
