// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// wanted are the modules that the tests need; what these need themselves comes with them. Loaded before the first test, so
// that nothing is loaded on demand. With a question mark: where the kernel has it.
var wanted = strings.Fields(`
	crc32c_generic
	veth dummy bridge vxlan tun tap ipip sit ip_gre ip6_gre ip6_tunnel geneve wireguard macvlan ipvlan bonding 8021q
	sch_ingress cls_bpf
	inet_diag tcp_diag udp_diag netlink_diag sctp sctp_diag
	nf_conntrack nf_conntrack_netlink nf_nat nf_tables nft_ct nft_nat nft_masq nft_chain_nat nft_reject_inet nft_numgen nft_fib_inet nft_log nft_limit nft_redir
	ip_tables iptable_nat iptable_filter ip6_tables ip6table_nat ip6table_filter nft_compat
	xt_conntrack xt_comment xt_mark xt_nat xt_MASQUERADE xt_addrtype xt_statistic xt_tcpudp
	ip_set ip_vs ip_vs_rr
	nfnetlink_hook? br_netfilter
`)

// modules finds files of modules by the names that kernels use.
type modules struct {
	files   map[string]string
	builtin map[string]bool
}

// moduleName is that of the module in a file: _ and - are the same.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func (k *kernel) modules() (*modules, error) {
	m := &modules{files: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(filepath.Join(k.dir, "lib", "modules"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case d.Name() == "modules.builtin":
			text, err := os.ReadFile(path)
			for _, file := range strings.Fields(string(text)) {
				m.builtin[moduleName(file)] = true
			}
			return err
		case strings.Contains(d.Name(), ".ko"):
			m.files[moduleName(path)] = path
		}
		return nil
	})
	return m, err
}

// module is one to load.
type module struct {
	name string
	text []byte
}

// order gives the modules named and all that they need, each after what it needs.
func (m *modules) order(names []string) ([]module, error) {
	var all []module
	done := map[string]bool{}
	var add func(name, by string) error
	add = func(name, by string) error {
		if name = moduleName(name); done[name] || m.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := m.files[name]
		if !ok {
			return fmt.Errorf("module %s (for %s) is not in the package, or in a part of it that is not kept", name, by)
		}
		text, err := readModule(path)
		if err != nil {
			return fmt.Errorf("read module %s: %w", path, err)
		}
		needs, err := dependencies(text)
		if err != nil {
			return fmt.Errorf("read module %s: %w", path, err)
		}
		for _, needed := range needs {
			if err := add(needed, name); err != nil {
				return err
			}
		}
		all = append(all, module{name, text})
		return nil
	}
	var errs []error
	for _, name := range names {
		name, rare := strings.CutSuffix(name, "?")
		if rare && m.files[moduleName(name)] == "" {
			continue
		}
		errs = append(errs, add(name, "the tests"))
	}
	return all, errors.Join(errs...)
}

// readModule reads a module. One that the package has compressed is kept beside as it is read: most runs want the same ones.
func readModule(path string) ([]byte, error) {
	plain, compressed := strings.CutSuffix(path, ".xz")
	if text, err := os.ReadFile(plain); !compressed || err == nil {
		return text, err
	}
	text, err := exec.Command("xz", "--decompress", "--stdout", path).Output()
	if err != nil {
		return nil, err
	}
	return text, keep(plain, text)
}

// keep writes a file whole or not at all: others read it meanwhile.
func keep(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "unpacked-")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// dependencies are those that a module names itself.
func dependencies(text []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Split(string(info), "\x00") {
		if names, ok := strings.CutPrefix(field, "depends="); ok && names != "" {
			return strings.Split(names, ","), nil
		}
	}
	return nil, nil
}
