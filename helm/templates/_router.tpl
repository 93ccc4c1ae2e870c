{{/* The router's configuration file. Secrets are not in it: they come by environment. */}}
{{- define "warmroute.routerConfig" -}}
{{- $config := deepCopy .Values.router.config -}}
{{- $models := list -}}
{{- range $index, $model := .Values.models -}}
{{- $entry := dict "name" $model.name "block_size" (int $.Values.kvCache.blockSize) -}}
{{- with $model.tokenizer -}}
{{- $_ := set $entry "tokenizer" (printf "/etc/warmroute/tokenizers/%d/%s" $index (.path | default "") | trimSuffix "/") -}}
{{- end -}}
{{- $models = append $models $entry -}}
{{- end -}}
{{- $_ := set $config "listen" (ternary "[::]:8080" "0.0.0.0:8080" (eq .Values.ipFamily "IPv6")) -}}
{{- $_ := set $config "admin" (dict "listen" (ternary "[::]:9090" "0.0.0.0:9090" (eq .Values.ipFamily "IPv6"))) -}}
{{- $_ := set $config "models" $models -}}
{{- $_ := set $config "redis" (dict "namespace" .Values.redis.namespace "lanes" (int .Values.redis.lanes)) -}}
{{- $timeouts := merge (dict "drain_delay_s" .Values.grace.announceSeconds "drain_s" .Values.grace.drainSeconds) (get $config "timeouts" | default dict) -}}
{{- $_ := set $config "timeouts" $timeouts -}}
{{- $_ := set $config "log" (merge (get $config "log" | default dict) (dict "format" "json")) -}}
{{ toYaml $config }}
{{- end -}}
