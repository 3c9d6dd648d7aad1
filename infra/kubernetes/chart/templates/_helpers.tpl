{{/* Checks what values.schema.json cannot say in words that help. */}}
{{- define "gristmill.check" -}}
{{- $rabbitmq := .Values.queue.rabbitmq -}}
{{- if and .Values.queue.sqs.prefix $rabbitmq.prefix -}}
{{- fail "queue.sqs.prefix and queue.rabbitmq.prefix are both set: a target has one kind of queues, so keep one of them." -}}
{{- else if not (or .Values.queue.sqs.prefix $rabbitmq.prefix) -}}
{{- fail "No queues: set queue.sqs.prefix (`terraform output target` has it) or queue.rabbitmq.prefix." -}}
{{- end -}}
{{- if not .Values.store -}}
{{- fail "No store: set store to s3://BUCKET/PREFIX (`terraform output target` has it)." -}}
{{- end -}}
{{- if and .Values.queue.sqs.prefix (not .Values.region) -}}
{{- fail "No region: SQS needs region, such as eu-central-1." -}}
{{- end -}}
{{- if $rabbitmq.prefix -}}
{{- if and $rabbitmq.cluster.name (not $rabbitmq.cluster.namespace) -}}
{{- fail "No namespace of the broker: set queue.rabbitmq.cluster.namespace." -}}
{{- else if not (or $rabbitmq.host $rabbitmq.cluster.name) -}}
{{- fail "No broker: set queue.rabbitmq.host, or queue.rabbitmq.cluster to a RabbitmqCluster." -}}
{{- else if and .Values.networkPolicy.enabled (not $rabbitmq.cluster.name) (not .Values.networkPolicy.broker) -}}
{{- fail "The network policy closes the way to the broker: set networkPolicy.broker, for example [{ipBlock: {cidr: 10.0.0.0/16}}]." -}}
{{- end -}}
{{- end -}}
{{- if not .Values.workers -}}
{{- fail "No workers: set workers to at least one pool, such as {cpu: {}}." -}}
{{- end -}}
{{- $needs := include "gristmill.needs" . | fromYaml -}}
{{- $named := dict -}}
{{- $all := list -}}
{{- range $pool, $own := include "gristmill.pools" . | fromYaml -}}
{{- $here := merge (dict "role" "worker" "pool" $pool "own" $own) $ -}}
{{- if gt (len (include "gristmill.name" $here)) 63 -}}
{{- fail (printf "The name %s has more than 63 characters: choose a shorter one of release or pool." (include "gristmill.name" $here)) -}}
{{- end -}}
{{- if not (or $.Values.images.prefix $own.image) -}}
{{- fail (printf "No image of the pool %s: set images.prefix to the registry's address with a slash, or its image." $pool) -}}
{{- end -}}
{{- if gt (int $own.min) (int $own.max) -}}
{{- fail (printf "workers.%s.min is larger than its max." $pool) -}}
{{- end -}}
{{- range $need := $own.requires -}}
{{- if hasKey $named $need -}}
{{- fail (printf "A need starts workers of one pool only: name `%s` in `requires` of %s or %s." $need (get $named $need) $pool) -}}
{{- end -}}
{{- $_ := set $named $need $pool -}}
{{- range $part := splitList ", " $need -}}
{{- if not (include "gristmill.meets" (merge (dict "part" $part) $here)) -}}
{{- fail (printf "No worker of the pool %s meets `%s` of its `requires`: jobs with this need could not use them." $pool $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $own_needs := get $needs $pool -}}
{{- $all = concat $all $own_needs -}}
{{- if gt (len $own_needs) 20 -}}
{{- fail (printf "The pool %s meets %d needs: list those of your jobs in its `requires`." $pool (len $own_needs)) -}}
{{- end -}}
{{- if and (not $own_needs) (lt (int $own.min) 1) -}}
{{- fail (printf "No need starts workers of the pool %s: give it labels, list needs in its `requires`, or set its `min`." $pool) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scaling.enabled (not (has "any" $all)) -}}
{{- fail "Jobs without `requires` would start no worker: add `any` to `requires` of one pool." -}}
{{- end -}}
{{- range $role := without (include "gristmill.roles" . | fromYamlArray) "worker" -}}
{{- if not (or $.Values.images.prefix (index $.Values $role).image) -}}
{{- fail (printf "No image of the %s: set images.prefix to the registry's address with a slash, or %s.image." $role $role) -}}
{{- end -}}
{{- end -}}
{{- with .Values.portal -}}
{{- if and .enabled .ingress.enabled (not .hosts) -}}
{{- fail "The portal answers only to names that it knows: set portal.hosts to those of the Ingress." -}}
{{- end -}}
{{- if and .enabled .ingress.enabled $.Values.networkPolicy.enabled (not .clients) -}}
{{- fail "The network policy closes the portal: set portal.clients to the pods of the ingress controller." -}}
{{- end -}}
{{- if and .enabled .trustHeader (not (and $.Values.networkPolicy.enabled .clients)) -}}
{{- fail "Every client that reaches the portal could set portal.trustHeader: enable networkPolicy, and set portal.clients to the proxy alone." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The pools of workers: workerDefaults with what each pool changes. */}}
{{- define "gristmill.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.workers -}}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy ($own | default dict))) -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{/* The processes of a worker of the pool. */}}
{{- define "gristmill.processes" -}}
{{- $cpu := toString (dig "limits" "cpu" "" .own.resources) -}}
{{- if .own.processes -}}
{{- int .own.processes -}}
{{- else if .own.gpus -}}
{{- int .own.gpus -}}
{{- else if not $cpu -}}
{{- fail (printf "How many processes does a worker run? Set workers.%s.resources.limits.cpu or workers.%s.processes." .pool .pool) -}}
{{- else if hasSuffix "m" $cpu -}}
{{- max 1 (div (int (trimSuffix "m" $cpu)) 1000) -}}
{{- else -}}
{{- max 1 (int (floor $cpu)) -}}
{{- end -}}
{{- end -}}

{{/* Whether the workers of the pool meet `part` of a need. */}}
{{- define "gristmill.meets" -}}
{{- $count := regexFind "^[0-9]+" .part | int -}}
{{- if eq .part "any" -}}
yes
{{- else if regexMatch "^[0-9]+ GPUs?$" .part -}}
{{- if le $count (int .own.gpus) }}yes{{ end -}}
{{- else if regexMatch "^[0-9]+ processors?$" .part -}}
{{- if le $count (div (include "gristmill.millicores" . | int) 1000 | int) }}yes{{ end -}}
{{- else if regexMatch "^[0-9.]+ [KMG]B of memory$" .part -}}
{{- $memory := dig "limits" "memory" "" .own.resources -}}
{{- $wanted := include "gristmill.bytes" (trimSuffix " of memory" .part) | float64 -}}
{{- if or (not $memory) (le $wanted (include "gristmill.bytes" $memory | float64)) }}yes{{ end -}}
{{- else -}}
{{- range $name, $value := .own.labels }}{{ if eq $.part (printf "label %s=%s" $name $value) }}yes{{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The bytes of a quantity of Kubernetes, or of a size of Gristmill, whose units are multiples of 1024. */}}
{{- define "gristmill.bytes" -}}
{{- $text := kindIs "string" . | ternary . (printf "%.0f" (float64 .)) -}}
{{- $units := dict "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776
    "KB" 1024 "MB" 1048576 "GB" 1073741824 -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- mulf $number (get $units (trimPrefix $number $text | trim) | default 1) -}}
{{- end -}}

{{/* Processors of a worker, in thousandths. */}}
{{- define "gristmill.millicores" -}}
{{- $cpu := toString (dig "limits" "cpu" (dig "requests" "cpu" 0 .own.resources) .own.resources) -}}
{{- if hasSuffix "m" $cpu }}{{ trimSuffix "m" $cpu | int }}{{ else }}{{ mulf $cpu 1000 | int }}{{ end -}}
{{- end -}}

{{/* The needs of each pool, in the words of gristmill_processes_wanted. A need starts workers of one pool, also if workers of
     others meet it: two pools would start twice as many workers. It is the pool that names the need in `requires`, else the
     plainest that meets it: of those with the fewest GPUs those with the fewest labels, of these the smallest (processors,
     then memory), of these the first by name. A need that no pool meets starts nothing. */}}
{{- define "gristmill.needs" -}}
{{- $pools := include "gristmill.pools" . | fromYaml -}}
{{- $taken := list -}}
{{- $order := list -}}
{{- range $pool, $own := $pools -}}
{{- $taken = concat $taken ($own.requires | default list) -}}
{{- $cpu := include "gristmill.millicores" (dict "own" $own) | int -}}
{{- $memory := include "gristmill.bytes" (dig "limits" "memory" 0 $own.resources) | float64 -}}
{{- $order = append $order (printf "%04d %04d %09d %020.0f %s" (int $own.gpus) (len $own.labels) $cpu $memory $pool) -}}
{{- end -}}
{{- $needs := dict -}}
{{- range sortAlpha $order -}}
{{- $pool := splitList " " . | last -}}
{{- $own := get $pools $pool -}}
{{- $subsets := list list -}}
{{- range $name, $value := $own.labels -}}
{{- range $subset := $subsets -}}
{{- $subsets = append $subsets (append $subset (printf "label %s=%s" $name $value)) -}}
{{- end -}}
{{- end -}}
{{- $own_needs := list -}}
{{- if not $.Values.scaling.enabled -}}
{{- else if hasKey $own "requires" -}}
{{- $own_needs = $own.requires -}}
{{- else -}}
{{- range $gpus := until (int (add1 $own.gpus)) -}}
{{- range $subset := $subsets -}}
{{- $parts := $subset -}}
{{- if $gpus }}{{ $parts = prepend $subset (printf "%d GPU%s" $gpus (ternary "" "s" (eq $gpus 1))) }}{{ end -}}
{{- $need := join ", " $parts | default "any" -}}
{{- if not (has $need $taken) -}}
{{- $own_needs = append $own_needs $need -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $taken = concat $taken $own_needs -}}
{{- end -}}
{{- $_ := set $needs $pool $own_needs -}}
{{- end -}}
{{- toYaml $needs -}}
{{- end -}}

{{/* The roles that run. */}}
{{- define "gristmill.roles" -}}
{{- toYaml (concat (list "worker" "reducer") (ternary (list "portal") list .Values.portal.enabled)) -}}
{{- end -}}

{{- define "gristmill.name" -}}
{{- join "-" (compact (list .Release.Name .role .pool)) -}}
{{- end -}}

{{/* Labels that select; `role` is worker, reducer, portal or absent, and a worker belongs to a `pool`. */}}
{{- define "gristmill.labels" -}}
app.kubernetes.io/name: gristmill
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .pool }}
gristmill/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "gristmill.serviceAccount" -}}
{{- (index .Values.serviceAccounts .role).name | default (printf "%s-%s" .Release.Name .role) -}}
{{- end -}}

{{- define "gristmill.image" -}}
{{- $name := ternary "gristmill-worker" "gristmill" (eq .role "worker") -}}
{{- $suffix := ternary "-cuda" "" (gt (int (.own.gpus | default 0)) 0) -}}
{{- .own.image | default (printf "%s%s:%s%s" .Values.images.prefix $name (.Values.images.tag | default .Chart.AppVersion) $suffix) -}}
{{- end -}}

{{/* What the pods of all roles have in common: metadata. */}}
{{- define "gristmill.podMetadata" -}}
{{- $own := .own -}}
labels:
  {{- include "gristmill.labels" . | nindent 2 }}
  {{- with $own.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- if and (ne .role "portal") (not .Values.podMonitor.enabled) }}
  prometheus.io/scrape: "true"
  prometheus.io/port: "9464"
  prometheus.io/path: /metrics
  {{- end }}
  # Pods restart when their settings change.
  checksum/settings: {{ include "gristmill.settings" . | sha256sum }}
  {{- with $own.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the pods of all roles have in common: most of their specification. */}}
{{- define "gristmill.podSpec" -}}
{{- $own := .own -}}
serviceAccountName: {{ include "gristmill.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $own.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or $own.gpus $own.tolerations }}
tolerations:
  {{- if $own.gpus }}
  # The taint of machine groups with GPUs, as NVIDIA's device plugin expects it.
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- with $own.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
volumes:
  - name: cache
    emptyDir:
      sizeLimit: {{ $own.cacheSize }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $own.tmpSize }}
  {{- with $own.sharedMemorySize }}
  - name: shared-memory
    emptyDir:
      medium: Memory
      sizeLimit: {{ . }}
  {{- end }}
  {{- with .Values.queue.rabbitmq.authority }}
  - name: authority
    configMap:
      name: {{ . | quote }}
  {{- end }}
  {{- with $own.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* An image for another processor fails with "exec format error". */}}
{{- define "gristmill.requiredArchitecture" -}}
requiredDuringSchedulingIgnoredDuringExecution:
  nodeSelectorTerms:
    - matchExpressions:
        - key: kubernetes.io/arch
          operator: In
          values: {{ toJson (.own.architectures | default .Values.images.architectures) }}
{{- end -}}

{{/* A zone or machine that fails takes few of the pods with it. Work takes precedence over an even spread. */}}
{{- define "gristmill.spread" -}}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "gristmill.labels" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{/* How many of the pods a drain of machines evicts at the same time. */}}
{{- define "gristmill.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "gristmill.name" . }}
  labels:
    {{- include "gristmill.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "gristmill.labels" . | nindent 6 }}
{{- end -}}

{{/* What the containers of all roles have in common. */}}
{{- define "gristmill.container" -}}
{{- $own := .own -}}
image: {{ include "gristmill.image" . }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
envFrom:
  - configMapRef:
      name: {{ .Release.Name | quote }}
  {{- with .Values.environmentFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "gristmill.secrets" . }}
env:
  {{- . | nindent 2 }}
{{- end }}
ports:
  - name: http
    containerPort: 9464
startupProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 10
  timeoutSeconds: 5
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
  {{- if eq .role "worker" }}
  # A worker without progress does not drain either.
  terminationGracePeriodSeconds: 60
  {{- end }}
{{- $resources := deepCopy $own.resources }}
{{- if $own.gpus }}
{{- range $kind := list "requests" "limits" }}
{{- $_ := set (index $resources $kind) "nvidia.com/gpu" (int $own.gpus | toString) }}
{{- end }}
{{- end }}
resources:
  {{- toYaml $resources | nindent 2 }}
volumeMounts:
  - name: cache
    mountPath: /var/cache/gristmill
  - name: tmp
    mountPath: /tmp
  {{- if $own.sharedMemorySize }}
  - name: shared-memory
    mountPath: /dev/shm
  {{- end }}
  {{- if .Values.queue.rabbitmq.authority }}
  - name: authority
    mountPath: /etc/gristmill/authority
    readOnly: true
  {{- end }}
  {{- with $own.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* What the environment of a role takes from Secrets. */}}
{{- define "gristmill.secrets" -}}
{{- $rabbitmq := .Values.queue.rabbitmq -}}
{{- if $rabbitmq.prefix -}}
{{- $secret := get $rabbitmq.secrets .role | default (printf "%s-%s-user-credentials" .Release.Name .role) -}}
{{- range $key := list "username" "password" }}
- name: BROKER_{{ upper $key }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret | quote }}
      key: {{ $key }}
{{- end }}
# Kubernetes replaces $(…).
- name: GRISTMILL_QUEUE
  value: {{ include "gristmill.address" . | quote }}
{{- end -}}
{{- if and (eq .role "portal") (not .own.trustHeader) }}
- name: GRISTMILL_PORTAL_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .own.secret | quote }}
      key: GRISTMILL_PORTAL_TOKEN
{{- end }}
{{- end -}}

{{/* The address of the queues in RabbitMQ. */}}
{{- define "gristmill.address" -}}
{{- with .Values.queue.rabbitmq -}}
amqps://$(BROKER_USERNAME):$(BROKER_PASSWORD)@{{ .host | default (printf "%s.%s.svc" .cluster.name .cluster.namespace) -}}
:{{ int .port }}/%2f?prefix={{ .prefix }}&lease_seconds={{ int .leaseSeconds }}
{{- if .authority }}&cacertfile=/etc/gristmill/authority/ca.crt{{ end -}}
{{- end -}}
{{- end -}}

{{/* The address of the queues in SQS, with key and tags of the queues that reducers create. */}}
{{- define "gristmill.sqsAddress" -}}
{{- $query := list -}}
{{- with .kmsKey }}{{ $query = append $query (printf "kms_key=%s" (urlquery .)) }}{{ end -}}
{{- range $name, $value := .tags }}{{ $query = append $query (printf "tag.%s=%s" (urlquery $name) (urlquery $value)) }}{{ end -}}
{{- printf "sqs://%s" .prefix }}{{ with $query }}?{{ join "&" . }}{{ end -}}
{{- end -}}

{{/* Environment of all roles; services/cli/src/settings.rs lists every variable. */}}
{{- define "gristmill.settings" -}}
{{- $settings := dict "GRISTMILL_LISTEN" "0.0.0.0:9464" "GRISTMILL_LOG_FORMAT" "json" "GRISTMILL_STORE" .Values.store -}}
{{- with .Values.region }}{{ $_ := set $settings "AWS_REGION" . }}{{ end -}}
{{- if .Values.queue.sqs.prefix }}{{ $_ := set $settings "GRISTMILL_QUEUE" (include "gristmill.sqsAddress" .Values.queue.sqs) }}{{ end -}}
{{- toYaml (merge (deepCopy .Values.environment) $settings) -}}
{{- end -}}
