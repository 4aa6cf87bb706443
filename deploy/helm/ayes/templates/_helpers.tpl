{{/* The labels by which a program's pods are selected. Takes a dict: root, part. */}}
{{- define "ayes.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "ayes.labels" -}}
{{ include "ayes.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The image of a program. Takes a dict: root, image (may be nil). */}}
{{- define "ayes.image" -}}
{{- $image := .image | default .root.Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What every pod has: no token of the cluster, no root. Takes a dict: root, image (may be nil). */}}
{{- define "ayes.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
# Work in hand takes up to 30 s.
terminationGracePeriodSeconds: 40
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with (.image | default .root.Values.image).pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What every container has. Takes a dict: root, image (may be nil). */}}
{{- define "ayes.container" -}}
image: {{ include "ayes.image" . | quote }}
imagePullPolicy: {{ (.image | default .root.Values.image).pullPolicy | default "IfNotPresent" }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The broker and DNS. Takes the root. */}}
{{- define "ayes.egress" -}}
- to:
    - podSelector:
        matchLabels: {{- toYaml .Values.broker.podLabels | nindent 10 }}
  ports: [{port: {{ .Values.broker.port }}, protocol: TCP}]
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{/* Copies the files of a mounted Secret into a private directory: programs keep no links in a
     store, and read no password that a group may read. Takes a dict: from, to. */}}
{{- define "ayes.copy" -}}
command: [python3, -c]
args:
  - |
    import os, pathlib, shutil
    os.umask(0o077)
    there = pathlib.Path({{ .to | quote }})
    there.mkdir(exist_ok=True)
    for one in pathlib.Path({{ .from | quote }}).glob("[!.]*"):
        shutil.copyfile(one, there / one.name)
{{- end }}
