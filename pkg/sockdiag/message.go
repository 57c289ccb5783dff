// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The kernel's include/uapi/linux/inet_diag.h.
const (
	sizeofID      = 48 // struct inet_diag_sockid
	sizeofMessage = 72 // struct inet_diag_msg
	offsetID      = 4  // in it

	established = 1 << 1 // as a state: of UDP, connected
)

// request is struct inet_diag_req_v2, for UDP.
type request struct {
	family uint8
	states uint32
	id     [sizeofID]byte
}

func (r request) bytes() []byte {
	b := []byte{r.family, unix.IPPROTO_UDP, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, r.states)
	return append(b, r.id[:]...)
}

// parse reads struct inet_diag_msg.
func parse(message []byte) (socket, bool) {
	if len(message) < sizeofMessage {
		return socket{}, false
	}
	s := socket{family: message[0]}
	copy(s.id[:], message[offsetID:])
	return s, true
}
