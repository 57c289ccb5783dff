{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "nearlb.selector" -}}
app.kubernetes.io/name: nearlb
{{- end }}

{{- define "nearlb.labels" -}}
{{ include "nearlb.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "nearlb.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* Addresses in force: a trial keeps off kube-proxy's ports unless it is given others. */ -}}
{{- define "nearlb.healthAddress" -}}
{{- if and .Values.trial.enabled (eq .Values.healthAddress ":10256") }}127.0.0.1:10266{{ else }}{{ .Values.healthAddress }}{{ end }}
{{- end }}

{{- define "nearlb.metricsAddress" -}}
{{- if and .Values.trial.enabled (eq .Values.metricsAddress "127.0.0.1:10249") }}127.0.0.1:10267{{ else }}{{ .Values.metricsAddress }}{{ end }}
{{- end }}

{{- /* The port of HOST:PORT, and its host without brackets. */ -}}
{{- define "nearlb.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- define "nearlb.host" -}}
{{ regexReplaceAll ":[0-9]+$" . "" | trimAll "[]" }}
{{- end }}

{{- define "nearlb.probe" -}}
httpGet:
  path: {{ .path }}
  {{- with include "nearlb.host" .address }}
  {{- if not (has . (list "0.0.0.0" "::")) }}
  host: {{ . | quote }}
  {{- end }}
  {{- end }}
  port: {{ include "nearlb.port" .address }}
{{- end }}

{{- /* What cannot work is refused before it is installed. */ -}}
{{- define "nearlb.check" -}}
{{- if and .Values.replaceKubeProxy .Values.trial.enabled }}
{{- fail "replaceKubeProxy and trial.enabled: want one of them" }}
{{- end }}
{{- if or .Values.metrics.service.enabled .Values.metrics.serviceMonitor.enabled }}
{{- $host := include "nearlb.host" (include "nearlb.metricsAddress" .) }}
{{- if or (hasPrefix "127." $host) (eq $host "::1") (eq $host "localhost") }}
{{- fail "metrics.service: nobody off the node reaches metricsAddress; set it to :10249" }}
{{- end }}
{{- end }}
{{- end }}
