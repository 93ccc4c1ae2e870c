{{/* Names and labels. */}}

{{- define "warmroute.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "warmroute.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "warmroute.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account that exists (serviceAccount.create is false)" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The labels that selectors use: dict root, component, pool (may be absent). They can't change in an upgrade. */}}
{{- define "warmroute.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
warmroute/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* dict image, default (the tag where none is given): repository:tag, or repository@digest. */}}
{{- define "warmroute.image" -}}
{{- if .image.digest -}}
{{ printf "%s@%s" .image.repository .image.digest }}
{{- else -}}
{{ printf "%s:%s" .image.repository (default .default .image.tag) }}
{{- end -}}
{{- end -}}

{{/* The account of routers that follow Services: its rights are not the engines'. One that exists gets the rights. */}}
{{- define "warmroute.routerServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- printf "%s-router" (include "warmroute.fullname" .) -}}
{{- else -}}
{{- include "warmroute.serviceAccount" . -}}
{{- end -}}
{{- end -}}

{{/* A model's name as a label's value and in names of objects. */}}
{{- define "warmroute.modelLabel" -}}
{{- regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trunc 40 | trimAll "-" -}}
{{- end -}}
