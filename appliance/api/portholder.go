package api

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portHolder names the process that listens on the port, for an error: " by
// process 123 (nginx)". The kernel shows the descriptors of other users'
// processes only to root; then it names the command that root can ask with.
func portHolder(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return ""
	}
	for inode := range listeningInodes("/proc", n) {
		if pid := inodeHolder("/proc", inode); pid != 0 {
			return fmt.Sprintf(" by process %d%s", pid, commandOf(pid))
		}
	}
	return fmt.Sprintf(" by another process (as root, ss -ltnp 'sport = :%d' names it)", n)
}

// listeningInodes reads the sockets in state LISTEN (0A) on the port from
// net/tcp and net/tcp6, as proc_pid_net(5) describes them.
func listeningInodes(proc string, port int) map[string]bool {
	out := map[string]bool{}
	suffix := fmt.Sprintf(":%04X", port)
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		table, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], suffix) {
				out[f[9]] = true
			}
		}
	}
	return out
}

// inodeHolder finds the process with a descriptor of the socket, 0 for none
// that this process may see.
func inodeHolder(proc, inode string) int {
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == "socket:["+inode+"]" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
			return pid
		}
	}
	return 0
}

// commandOf is " (name)" of a process, "" when it has gone.
func commandOf(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(comm)) + ")"
}
