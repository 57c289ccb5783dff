// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// Stream is endless content that both ends of a transfer can make by themselves, so that every byte is compared.
type Stream struct{ source *rand.ChaCha8 }

// NewStream starts the stream of a seed.
func NewStream(seed uint64) *Stream {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &Stream{source: rand.NewChaCha8(key)}
}

// Read fills p; it never fails.
func (s *Stream) Read(p []byte) (int, error) { return s.source.Read(p) }

// Check reads length bytes and compares them with the stream. The error names the first block that differs.
func (s *Stream) Check(r io.Reader, length int64) error {
	const block = 64 << 10
	got, want := make([]byte, block), make([]byte, block)
	for at := int64(0); at < length; at += block {
		n := min(block, length-at)
		if read, err := io.ReadFull(r, got[:n]); err != nil {
			return fmt.Errorf("read content at byte %d: %w", at+int64(read), err)
		}
		_, _ = s.Read(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("compare content: bytes %d to %d differ", at, at+n)
		}
	}
	return nil
}

// Send writes length bytes of the stream.
func (s *Stream) Send(w io.Writer, length int64) error {
	_, err := io.CopyBuffer(onlyWriter{w}, io.LimitReader(s, length), make([]byte, 64<<10))
	return err
}

// onlyWriter hides ReadFrom, so that the copy goes by the given buffer.
type onlyWriter struct{ io.Writer }
