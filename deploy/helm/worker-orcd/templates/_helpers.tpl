{{- define "worker-orcd.name" -}}
{{- printf "%s-%s" .Release.Name (.Values.nameOverride | default "worker-orcd") | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "worker-orcd.selector" -}}
app.kubernetes.io/name: worker-orcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "worker-orcd.labels" -}}
{{ include "worker-orcd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Not empty if workers register with an smg. */ -}}
{{- define "worker-orcd.entersSmg" -}}
{{- range .Values.orchestrators }}{{ if or (hasPrefix "http://" .) (hasPrefix "https://" .) }}yes{{ end }}{{ end -}}
{{- end -}}

{{- define "worker-orcd.smgName" -}}
{{ include "worker-orcd.name" . }}-smg
{{- end -}}

{{- define "worker-orcd.smgSelector" -}}
app.kubernetes.io/name: smg
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "worker-orcd.smgLabels" -}}
{{ include "worker-orcd.smgSelector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The address that pods listen on: all addresses of the pod. */ -}}
{{- define "worker-orcd.listenHost" -}}
{{- if or (has "IPv6" .Values.ipFamilies) (has .Values.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) }}[::]{{ else }}0.0.0.0{{ end -}}
{{- end -}}

{{- /* The address families of a Service; empty if the cluster decides. */ -}}
{{- define "worker-orcd.ipFamilies" -}}
{{- if or .Values.ipFamilyPolicy (gt (len .Values.ipFamilies) 1) }}
ipFamilyPolicy: {{ .Values.ipFamilyPolicy | default "PreferDualStack" }}
{{- end }}
{{- with .Values.ipFamilies }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Settings that restricted Pod Security requires of each container. */ -}}
{{- define "worker-orcd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Rules that the schema cannot express. */ -}}
{{- define "worker-orcd.check" -}}
{{- $model := .Values.model -}}
{{- if and $model.existingClaim $model.fetch.url }}{{ fail "model: set existingClaim or fetch.url, not both" }}{{ end -}}
{{- if not (or $model.existingClaim $model.fetch.url) }}{{ fail "model: set existingClaim or fetch.url: workers need models from somewhere" }}{{ end -}}
{{- if and $model.fetch.url (not (and $model.file $model.sha256)) }}{{ fail "model.fetch.url needs model.file and model.sha256: what is fetched is checked" }}{{ end -}}
{{- if and $model.sha256 (not $model.file) }}{{ fail "model.sha256 needs model.file" }}{{ end -}}
{{- $draftIsFile := not (has $model.draft (list "none" "ngram" "mtp")) -}}
{{- if and $draftIsFile $model.fetch.url }}{{ fail "model.draft: fetch.url fetches model.file alone; put both files into existingClaim, or set ngram or mtp" }}{{ end -}}
{{- if and $model.draftSha256 (not $draftIsFile) }}{{ fail "model.draftSha256 needs a file in model.draft" }}{{ end -}}
{{- if and (not .Values.tls.secret) (or .Values.tls.clientCertificates .Values.tls.orchestrator) }}{{ fail "tls.clientCertificates and tls.orchestrator need tls.secret" }}{{ end -}}
{{- if and (not .Values.tls.clientCertificates) (or .Values.tls.inferenceClients .Values.tls.controlClients) }}{{ fail "tls.inferenceClients and tls.controlClients need tls.clientCertificates" }}{{ end -}}
{{- if and .Values.tls.secret (or .Values.smg.enabled (include "worker-orcd.entersSmg" .)) }}{{ fail "smg reaches workers in plaintext only: set tls.secret, or smg.enabled and http:// orchestrators, not both" }}{{ end -}}
{{- if and .Values.tokenSecret .Values.smg.enabled }}{{ fail "smg shows workers no token: set tokenSecret or smg.enabled, not both" }}{{ end -}}
{{- if and .Values.tokenSecret (include "worker-orcd.entersSmg" .) (not (hasKey .Values.env "ORCD_ADVERTISE_ADDRESS")) }}{{ fail "smg shows workers no token: set tokenSecret or http:// orchestrators, not both, or let env.ORCD_ADVERTISE_ADDRESS name what adds one" }}{{ end -}}
{{- if and (eq .Values.ipFamilyPolicy "SingleStack") (gt (len .Values.ipFamilies) 1) }}{{ fail "ipFamilyPolicy: SingleStack has one address family: name one in ipFamilies, or PreferDualStack" }}{{ end -}}
{{- if and .Values.orchestratorKeySecret (not (include "worker-orcd.entersSmg" .)) }}{{ fail "orchestratorKeySecret is for smg: it needs an http:// address in orchestrators" }}{{ end -}}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) }}{{ fail "autoscaling.maxReplicas is less than minReplicas" }}{{ end -}}
{{- end -}}
