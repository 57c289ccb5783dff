#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes manifests/monitoring/prometheusrule.yaml, which wraps alerts.yaml for the Prometheus operator.
set -eu
cd "$(dirname "$0")/../../manifests/monitoring"
{
	cat <<-'END'
		# SPDX-License-Identifier: Apache-2.0
		# The rules of alerts.yaml for the Prometheus operator. Made by tests/monitoring/rule.sh: edit alerts.yaml.
		apiVersion: monitoring.coreos.com/v1
		kind: PrometheusRule
		metadata:
		  name: nearlb
		  namespace: kube-system
		  labels:
		    app.kubernetes.io/name: nearlb
		spec:
	END
	sed -n '/^groups:/,$s/^/  /p' alerts.yaml
} >prometheusrule.yaml
