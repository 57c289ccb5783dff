// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"
	"os"
)

// written notes whether all that a command said could be written: many lines go to it of which nobody looks at the error.
type written struct {
	io.Writer
	err error // the first
}

func (w *written) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// File is table.FileOf's.
func (w *written) File() (*os.File, bool) {
	file, is := w.Writer.(*os.File)
	return file, is
}
