// SPDX-License-Identifier: Apache-2.0

// Package errors has the type of error that flannel's backend for Tencent Cloud asks for.
package errors

// TencentCloudSDKError is never made.
type TencentCloudSDKError struct{ error }
