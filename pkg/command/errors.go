// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
)

// Exit statuses of the contract.
const (
	ExitDone   = 0
	ExitFailed = 1 // the request was understood and failed
	ExitUsage  = 2 // bad usage or bad input
)

// UsageError is bad usage or bad input: exit status 2.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usagef is fmt.Errorf for bad usage.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// QuietError ends with status 1 and says nothing more: the command's output has said it.
type QuietError struct{}

func (QuietError) Error() string { return "" }

// ExitStatus is what a program ends with after an error; nil: none.
func ExitStatus(err error) int {
	var usage UsageError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &usage):
		return ExitUsage
	}
	return ExitFailed
}
