// SPDX-License-Identifier: Apache-2.0

// Package common stands for that of Tencent Cloud's library, which flannel's backend for that cloud imports and these tests never run.
package common

// StringPtr, StringPtrs and BoolPtr give pointers to values.
func StringPtr(v string) *string { return &v }
func BoolPtr(v bool) *bool       { return &v }

func StringPtrs(values []string) (all []*string) {
	for _, v := range values {
		all = append(all, &v)
	}
	return all
}
