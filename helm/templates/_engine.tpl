{{/* The engine's flags. Those that engine, agent and router must agree on come from kvCache alone. */}}

{{- define "warmroute.ownedFlags" -}}
{{- list "--model" "--served-model-name" "--host" "--port" "--block-size" "--enable-prefix-caching" "--no-enable-prefix-caching" "--prefix-caching-hash-algo" "--enable-prompt-tokens-details" "--kv-events-config" "--max-model-len" "--tensor-parallel-size" "-tp" | toJson -}}
{{- end -}}

{{/* Where the engine publishes: sockets in a folder that only this pod's containers share, so that token ids never
     leave it. (vLLM would connect to, not bind, an events address on tcp://127.0.0.1.) */}}
{{- define "warmroute.eventsEndpoint" -}}ipc:///run/kv-events/events{{- end -}}
{{- define "warmroute.replayEndpoint" -}}ipc:///run/kv-events/replay{{- end -}}

{{/* dict root, pool, model: a YAML list. */}}
{{- define "warmroute.engineArgs" -}}
{{- $owned := include "warmroute.ownedFlags" . | fromJsonArray -}}
{{- range .pool.args -}}
{{- $flag := regexReplaceAll "[= ].*" . "" | replace "_" "-" -}}
{{- if has $flag $owned -}}
{{- fail (printf "pools.%s.args: %s is set by the chart: use models[] or kvCache, so that engine, agent and router agree" $.pool.name $flag) -}}
{{- end -}}
{{- end -}}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" (include "warmroute.eventsEndpoint" .) "replay_endpoint" (include "warmroute.replayEndpoint" .) -}}
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
{{- if gt (int .pool.gpus) 1 }}
- --tensor-parallel-size={{ int .pool.gpus }}
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
