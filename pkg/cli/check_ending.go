// SPDX-License-Identifier: Apache-2.0

package cli

// checkEnding asks whether the kernel ends the sockets of UDP clients whose backend is gone.
func checkEnding(probe func() error) checkRow {
	if err := probe(); err != nil {
		return checkRow{"end of UDP sockets", warning,
			"connected UDP sockets of the node's own clients go on sending to a backend that is gone (CONFIG_INET_UDP_DIAG, CONFIG_INET_DIAG_DESTROY): " + err.Error()}
	}
	return checkRow{"end of UDP sockets", good, "clients learn that their backend is gone"}
}
