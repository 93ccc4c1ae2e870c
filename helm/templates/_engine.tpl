{{/* The engine's flags. Those that engine, agent and router must agree on come from kvCache alone. */}}

{{- define "warmroute.ownedFlags" -}}
{{- list "--model" "--served-model-name" "--host" "--port" "--block-size" "--enable-prefix-caching" "--no-enable-prefix-caching" "--prefix-caching-hash-algo" "--enable-prompt-tokens-details" "--kv-events-config" "--max-model-len" "--tensor-parallel-size" "-tp" "--data-parallel-size" "-dp" "--enable-lora" "--lora-modules" "--api-key" | toJson -}}
{{- end -}}

{{/* Where the engine publishes (what it is told) and where the agent connects, of a pool: sockets in a folder that only this
     pod's containers share, so that token ids never leave it. With several data parallel ranks vLLM wants TCP, rank r at
     port + r; no network policy lets anyone reach those ports. (It would connect to, not bind, tcp://127.0.0.1.) */}}
{{- define "warmroute.eventsEndpoint" -}}{{ ternary "tcp://*:5600" "ipc:///run/kv-events/events" (gt (int .dataParallel) 1) }}{{- end -}}
{{- define "warmroute.replayEndpoint" -}}{{ ternary "tcp://*:5700" "ipc:///run/kv-events/replay" (gt (int .dataParallel) 1) }}{{- end -}}
{{- define "warmroute.eventsAddress" -}}{{ include "warmroute.eventsEndpoint" . | replace "*" "localhost" }}{{- end -}}
{{- define "warmroute.replayAddress" -}}{{ include "warmroute.replayEndpoint" . | replace "*" "localhost" }}{{- end -}}

{{/* dict root, pool, model: a YAML list. */}}
{{- define "warmroute.engineArgs" -}}
{{- $owned := include "warmroute.ownedFlags" . | fromJsonArray -}}
{{- range .pool.args -}}
{{- $flag := regexReplaceAll "[= ].*" . "" | replace "_" "-" -}}
{{- if has $flag $owned -}}
{{- fail (printf "pools.%s.args: %s is set by the chart: use models[] or kvCache, so that engine, agent and router agree" $.pool.name $flag) -}}
{{- end -}}
{{- end -}}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" (include "warmroute.eventsEndpoint" .pool) "replay_endpoint" (include "warmroute.replayEndpoint" .pool) -}}
{{- $source := .model.source -}}
{{- if .model.weights -}}
{{- $source = printf "/weights/%s" .model.source | trimSuffix "/" -}}
{{- end -}}
- {{ printf "--model=%s" $source | quote }}
- {{ printf "--served-model-name=%s" .model.name | quote }}
- {{ printf "--host=%s" (ternary "::" "0.0.0.0" (eq .root.Values.ipFamily "IPv6")) | quote }}
- --port={{ .root.Values.engine.port }}
{{- with .model.maxModelLen }}
- --max-model-len={{ int . }}
{{- end }}
{{- $ranks := int .pool.dataParallel }}
{{- if and (gt (int .pool.gpus) 0) (mod (int .pool.gpus) $ranks) }}
{{- fail (printf "pools.%s: %d GPUs can't be shared by %d data parallel ranks; give each the same number" .pool.name (int .pool.gpus) $ranks) }}
{{- end }}
{{- if gt (div (int .pool.gpus) $ranks) 1 }}
- --tensor-parallel-size={{ div (int .pool.gpus) $ranks }}
{{- end }}
{{- if gt $ranks 1 }}
- --data-parallel-size={{ $ranks }}
{{- end }}
{{- with .model.adapters }}
- --enable-lora
- --lora-modules
{{- range . }}
- {{ printf "%s=%s" .name (ternary (printf "/weights/%s" .path) .path (hasKey $.model "weights")) | quote }}
{{- end }}
{{- end }}
- --enable-prefix-caching
- --block-size={{ .root.Values.kvCache.blockSize }}
- --prefix-caching-hash-algo={{ .root.Values.kvCache.hashAlgorithm }}
- --enable-prompt-tokens-details
- {{ printf "--kv-events-config=%s" (toJson $events) | quote }}
{{- range .pool.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Run before SIGTERM, which would end vLLM with requests in flight: leave routers the time to hear of it, then wait
     until nothing runs. Ends early when the engine is idle; the grace period ends it in any case. */}}
{{- define "warmroute.enginePreStop" -}}
import time, urllib.request
time.sleep({{ .Values.grace.announceSeconds }})
deadline = time.monotonic() + {{ .Values.grace.drainSeconds }}
names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
while time.monotonic() < deadline:
    text = urllib.request.urlopen("http://localhost:{{ .Values.engine.port }}/metrics", timeout=5).read().decode()
    if not sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(names)):
        break
    time.sleep(0.5)
{{- end -}}
