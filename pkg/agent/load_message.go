// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"net/netip"
)

// Datagrams by which nodes tell each other of connections: what it is (4 bytes), when it was sent (8, as in hearsay), when the question that it
// answers was sent (8, 0: it is a question), rows of 16 bytes, MAC.
const (
	loadRows    = 64 // backends in a datagram
	loadRowSize = 16
	loadHead    = 20
	loadSize    = loadHead + loadRows*loadRowSize + hearsayMAC

	// loadMost is as many connections as count, of those that one node says to have to a backend.
	loadMost = 1 << 20

	// loadUnknown is what an answer says of a backend that the answering node does not have.
	loadUnknown = 1<<32 - 1
)

var loadMagic = [4]byte{'n', 'l', 'l', '1'}

// loadRow is a backend's part of a datagram. In a question it is what the asking node has, in an answer what all others have.
type loadRow struct {
	backend uint64 // hash of address, port and protocol
	open    uint32 // connections
	opened  uint32 // of late, in a second
}

// loadMessage is a question or an answer.
type loadMessage struct {
	at      uint64 // when it was sent, by the sender's clock
	answers uint64 // when the question was, by the receiver's; 0: it is a question
	rows    []loadRow
}

func (m loadMessage) encode(key hearsayKey, from, to netip.Addr) []byte {
	out := binary.BigEndian.AppendUint64(loadMagic[:], m.at)
	out = binary.BigEndian.AppendUint64(out, m.answers)
	for _, row := range m.rows {
		out = binary.BigEndian.AppendUint64(out, row.backend)
		out = binary.BigEndian.AppendUint32(out, row.open)
		out = binary.BigEndian.AppendUint32(out, row.opened)
	}
	return append(out, key.mac(out, from, to)...)
}

// isLoad says whether a datagram may be such a message: its length is one's, and it begins as one.
func isLoad(in []byte) bool {
	rows := len(in) - loadHead - hearsayMAC
	return rows > 0 && rows%loadRowSize == 0 && len(in) <= loadSize && [4]byte(in) == loadMagic
}

// loadAnswers is when the question of a message was sent that may be an answer; 0: it is a question.
func loadAnswers(in []byte) uint64 { return binary.BigEndian.Uint64(in[12:]) }

// decodeLoad takes a message of which isLoad holds, if it is signed with one of the keys.
func decodeLoad(in []byte, keys []hearsayKey, from, to netip.Addr) (m loadMessage, ok bool) {
	out, ok := signed(in, keys, from, to)
	if !ok {
		return loadMessage{}, false
	}
	for at := loadHead; at < len(out); at += loadRowSize {
		row := out[at:]
		m.rows = append(m.rows, loadRow{binary.BigEndian.Uint64(row), binary.BigEndian.Uint32(row[8:]), binary.BigEndian.Uint32(row[12:])})
	}
	m.at, m.answers = sentAt(out), loadAnswers(out)
	return m, true
}
