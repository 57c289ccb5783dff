// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is the kernel's struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// ethtoolRequest is the kernel's struct ifreq with a pointer in it.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// DisableOffloads has packets leave a device with complete checksums and in segments of its MTU (ETHTOOL_STXCSUM): whoever
// receives them checks every one.
func (ns *Namespace) DisableOffloads(device string) error {
	if err := ns.setOffload(device, ethtoolValue{command: unix.ETHTOOL_STXCSUM}); err != nil {
		return fmt.Errorf("disable offloads of %s of %s: %w", device, ns.Name, err)
	}
	return nil
}

// EnableGRO has a veth merge what arrives (ETHTOOL_SGRO). Its other end sends what programs at XDP redirect to it, from then on alone.
func (ns *Namespace) EnableGRO(device string) error {
	if err := ns.setOffload(device, ethtoolValue{command: unix.ETHTOOL_SGRO, data: 1}); err != nil {
		return fmt.Errorf("enable GRO of %s of %s: %w", device, ns.Name, err)
	}
	return nil
}

func (ns *Namespace) setOffload(device string, value ethtoolValue) error {
	request := ethtoolRequest{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	err := ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		_, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if failed != 0 {
			return failed
		}
		return nil
	})
	runtime.KeepAlive(&value)
	return err
}
