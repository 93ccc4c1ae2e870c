{{/* The router's configuration file. Secrets are not in it: they come by environment, or as files of a Secret. */}}
{{- define "warmroute.routerConfig" -}}
{{- $config := deepCopy .Values.router.config -}}
{{- with .Values.router.discovery -}}
{{- if or .dns .kubernetes -}}{{- $_ := set $config "discovery" . -}}{{- end -}}
{{- end -}}
{{- $any := ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") -}}
{{- $models := list -}}
{{- range $index, $model := .Values.models -}}
{{- $entry := dict "name" $model.name "block_size" (int $.Values.kvCache.blockSize) -}}
{{- with $model.tokenizer -}}
{{- $_ := set $entry "tokenizer" (printf "/etc/warmroute/tokenizers/%d/%s" $index (.path | default "") | trimSuffix "/") -}}
{{- end -}}
{{- with $model.aliases -}}{{- $_ := set $entry "aliases" . -}}{{- end -}}
{{- $models = append $models $entry -}}
{{- end -}}
{{- $_ := set $config "listen" (printf "%s:8080" $any) -}}
{{- $_ := set $config "models" $models -}}
{{- $_ := set $config "redis" (dict "namespace" .Values.redis.namespace "lanes" (int .Values.redis.lanes)) -}}
{{- $admin := merge (dict "listen" (printf "%s:9090" $any)) (get $config "admin" | default dict) -}}
{{- if .Values.router.adminToken.name -}}
{{- $_ := set $admin "token_file" "/etc/warmroute/secrets/admin/token" -}}
{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{- if .Values.router.tls.secretName -}}
{{- $tls := dict "cert" "/etc/warmroute/secrets/tls/tls.crt" "key" "/etc/warmroute/secrets/tls/tls.key" -}}
{{- if .Values.router.tls.clientCa -}}{{- $_ := set $tls "client_ca" "/etc/warmroute/secrets/tls/ca.crt" -}}{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- if .Values.router.tenants.file.name -}}
{{- $_ := set $config "tenants_file" "/etc/warmroute/secrets/tenants/tenants.yaml" -}}
{{- $_ := set $config "isolation" (merge (dict "secret_file" "/etc/warmroute/secrets/isolation/secret") (get $config "isolation" | default dict)) -}}
{{- end -}}
{{- if .Values.router.upstreamKey.name -}}
{{- $_ := set $config "upstream" (merge (dict "api_key_file" "/etc/warmroute/secrets/upstream/key") (get $config "upstream" | default dict)) -}}
{{- end -}}
{{- $timeouts := merge (dict "drain_delay_s" .Values.grace.announceSeconds "drain_s" .Values.grace.drainSeconds) (get $config "timeouts" | default dict) -}}
{{- $_ := set $config "timeouts" $timeouts -}}
{{- $_ := set $config "log" (merge (get $config "log" | default dict) (dict "format" "json")) -}}
{{ toYaml $config }}
{{- end -}}

{{/* What a running router does not take over from a changed file: another value of it rolls the pods. The rest (weights,
     limits, tenants, ...) is taken over as the kubelet brings it. */}}
{{- define "warmroute.fixedConfig" -}}
{{- $config := include "warmroute.routerConfig" . | fromYaml -}}
{{- $fixed := pick $config "listen" "workers" "redis" "registration" "tenants_file" "tls" -}}
{{- $_ := set $fixed "admin" (pick $config.admin "listen" "token_file") -}}
{{- $_ := set $fixed "log" (pick $config.log "format") -}}
{{- $models := list -}}
{{- range $config.models -}}{{- if not .tokenizer -}}{{- $models = append $models (omit . "aliases") -}}{{- end -}}{{- end -}}
{{- $_ := set $fixed "models" $models -}}
{{ toJson $fixed }}
{{- end -}}

{{/* The Secrets that a router reads as files, each in a folder of its own: a list of {volume, folder, secret, items}. They are
     mounted as folders, so that what the kubelet changes in them is seen. */}}
{{- define "warmroute.routerSecrets" -}}
{{- $found := list -}}
{{- $router := .Values.router -}}
{{- if $router.adminToken.name -}}
{{- $found = append $found (dict "folder" "admin" "secret" $router.adminToken.name "items" (list (dict "key" $router.adminToken.key "path" "token"))) -}}
{{- end -}}
{{- if $router.upstreamKey.name -}}
{{- $found = append $found (dict "folder" "upstream" "secret" $router.upstreamKey.name "items" (list (dict "key" $router.upstreamKey.key "path" "key"))) -}}
{{- end -}}
{{- if $router.tls.secretName -}}
{{- $items := list (dict "key" "tls.crt" "path" "tls.crt") (dict "key" "tls.key" "path" "tls.key") -}}
{{- if $router.tls.clientCa -}}{{- $items = append $items (dict "key" "ca.crt" "path" "ca.crt") -}}{{- end -}}
{{- $found = append $found (dict "folder" "tls" "secret" $router.tls.secretName "items" $items) -}}
{{- end -}}
{{- if $router.tenants.file.name -}}
{{- $found = append $found (dict "folder" "tenants" "secret" $router.tenants.file.name "items" (list (dict "key" $router.tenants.file.key "path" "tenants.yaml"))) -}}
{{- $own := $router.tenants.isolation -}}
{{- $found = append $found (dict "folder" "isolation" "secret" ($own.name | default (include "warmroute.secretName" .)) "items" (list (dict "key" ($own.key | default "isolation") "path" "secret"))) -}}
{{- end -}}
{{ toJson $found }}
{{- end -}}
