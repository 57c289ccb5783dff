// SPDX-License-Identifier: Apache-2.0

package watch

// labelProxyName gives a Service to the proxy of that name instead of to the cluster's (KEP 2447).
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// servicesOurs selects them in the API server.
func (c NodeConfig) servicesOurs() string {
	if c.ProxyName == "" {
		return "!" + labelProxyName
	}
	return labelProxyName + "=" + c.ProxyName
}

// ours gives nil for a Service of another proxy. To the cluster's own proxy any value of the label hides it, the empty one too.
func (c NodeConfig) ours(s *service) *service {
	switch {
	case s == nil:
		return nil
	case c.ProxyName == "" && s.more().proxy == nil:
		return s
	case c.ProxyName != "" && s.more().proxy != nil && *s.more().proxy == c.ProxyName:
		return s
	}
	return nil
}
