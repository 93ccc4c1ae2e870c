{{/* What every pod and container here has in common: the restricted Pod Security Standard, and no API token. A router that follows Services is
     the exception: it has an account of its own, with a token (serviceaccount.yaml, rbac.yaml). */}}

{{- define "warmroute.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "warmroute.containerSecurity" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "warmroute.podCommon" -}}
serviceAccountName: {{ include "warmroute.serviceAccount" . }}
automountServiceAccountToken: false
{{ include "warmroute.podShared" . }}
{{- end -}}

{{/* The router's: with a token only where it asks the API. */}}
{{- define "warmroute.routerPodCommon" -}}
{{- if .Values.router.discovery.kubernetes -}}
serviceAccountName: {{ include "warmroute.routerServiceAccount" . }}
automountServiceAccountToken: true
{{ include "warmroute.podShared" . }}
{{- else -}}
{{- include "warmroute.podCommon" . }}
{{- end -}}
{{- end -}}

{{- define "warmroute.podShared" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "warmroute.podSecurity" . | nindent 2 }}
{{- end -}}

{{/* dict component, root, pool: replicas on different nodes and zones where that can be had. */}}
{{- define "warmroute.spread" -}}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "warmroute.selector" $ | nindent 8 }}
{{- end }}
{{- end -}}
