{{/* What the parts must agree on: names of Secrets, the Redis they meet at, and the times of leaving. */}}

{{- define "warmroute.secretName" -}}
{{ include "warmroute.fullname" . }}-generated
{{- end -}}

{{- define "warmroute.valkeyHost" -}}
{{ include "warmroute.fullname" . }}-valkey
{{- end -}}

{{/* Environment of router and agent: dict root, redis and registration (the names of the variables). No secret is ever an argument. */}}
{{- define "warmroute.sharedEnv" -}}
{{- $root := .root -}}
{{- if $root.Values.valkey.enabled }}
- name: VALKEY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "warmroute.secretName" $root }}
      key: valkey-password
- name: {{ .redis }}
  value: redis://:$(VALKEY_PASSWORD)@{{ include "warmroute.valkeyHost" $root }}:6379/0
{{- else }}
- name: {{ .redis }}
  valueFrom:
    secretKeyRef:
      name: {{ $root.Values.redis.urlSecret.name }}
      key: {{ $root.Values.redis.urlSecret.key }}
{{- end }}
- name: {{ .registration }}
  valueFrom:
    secretKeyRef:
      {{- if $root.Values.registration.secret.name }}
      name: {{ $root.Values.registration.secret.name }}
      key: {{ $root.Values.registration.secret.key }}
      {{- else }}
      name: {{ include "warmroute.secretName" $root }}
      key: registration
      {{- end }}
{{- end -}}

{{/* Seconds from SIGTERM (or preStop) to SIGKILL: announce, finish, and 15 to close. */}}
{{- define "warmroute.terminationSeconds" -}}
{{ add .Values.grace.announceSeconds .Values.grace.drainSeconds 15 }}
{{- end -}}

{{/* dict root, name: the model of that name, as JSON. */}}
{{- define "warmroute.model" -}}
{{- $name := .name -}}
{{- $found := dict -}}
{{- range .root.Values.models -}}
{{- if eq .name $name -}}{{- $found = . -}}{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "pools: the model %q is not one of models[].name" $name) -}}
{{- end -}}
{{ toJson $found }}
{{- end -}}

{{/* Mistakes that a schema can't see. */}}
{{- define "warmroute.check" -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- if has .name $names -}}{{- fail (printf "models: %q is there twice" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $pools := list -}}
{{- range .Values.pools -}}
{{- if has .name $pools -}}{{- fail (printf "pools: %q is there twice" .name) -}}{{- end -}}
{{- $pools = append $pools .name -}}
{{- end -}}
{{- if and (not .Values.valkey.enabled) (not .Values.redis.urlSecret.name) -}}
{{- fail "redis.urlSecret: name the Secret that holds the Redis URL (valkey.enabled is false), as {name: redis, key: url}" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host (ingress.enabled is true), as [llm.example.org]" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name at least one gateway (httpRoute.enabled is true), as [{name: gateway}]" -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (gt (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas)) -}}
{{- fail (printf "router.autoscaling: minReplicas (%d) is over maxReplicas (%d)" (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and (hasPrefix "xxhash" .Values.kvCache.hashAlgorithm) (not .Values.kvCache.hashSeed) -}}
{{- fail (printf "kvCache.hashSeed: %s has a random root in each engine unless a seed is set" .Values.kvCache.hashAlgorithm) -}}
{{- end -}}
{{- end -}}
