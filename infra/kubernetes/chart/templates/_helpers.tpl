{{/* Checks what values.schema.json cannot say in words that help. */}}
{{- define "gristmill.check" -}}
{{- $queue := .Values.queue -}}
{{- if and $queue.sqs.prefix $queue.rabbitmq.enabled -}}
{{- fail "queue.sqs.prefix and queue.rabbitmq.enabled are both set: a target has one kind of queues, so keep one of them." -}}
{{- else if not (or $queue.sqs.prefix $queue.rabbitmq.enabled) -}}
{{- fail "No queues: set queue.sqs.prefix (`terraform output target` has it) or queue.rabbitmq.enabled." -}}
{{- end -}}
{{- if not .Values.store -}}
{{- fail "No store: set store to s3://BUCKET/PREFIX (`terraform output target` has it)." -}}
{{- end -}}
{{- range $role := include "gristmill.roles" . | fromYamlArray -}}
{{- if not (or $.Values.images.prefix (index $.Values $role).image) -}}
{{- fail (printf "No image of the %s: set images.prefix to the registry's address with a slash, or %s.image." $role $role) -}}
{{- end -}}
{{- end -}}
{{- if $queue.sqs.prefix -}}
{{- if not .Values.region -}}
{{- fail "No region: SQS needs region, such as eu-central-1." -}}
{{- end -}}
{{- else if and .Values.networkPolicy.enabled (not .Values.networkPolicy.broker) -}}
{{- fail "The network policy closes the way to the broker: set networkPolicy.broker, for example [{ipBlock: {cidr: 10.0.0.0/16}}]." -}}
{{- end -}}
{{- end -}}

{{/* The processes of a worker. */}}
{{- define "gristmill.processes" -}}
{{- $cpu := toString (dig "limits" "cpu" "" .Values.worker.resources) -}}
{{- if .Values.scaling.processesPerWorker -}}
{{- int .Values.scaling.processesPerWorker -}}
{{- else if .Values.worker.gpus -}}
{{- int .Values.worker.gpus -}}
{{- else if not $cpu -}}
{{- fail "How many processes does a worker run? Set worker.resources.limits.cpu or scaling.processesPerWorker." -}}
{{- else if hasSuffix "m" $cpu -}}
{{- max 1 (div (int (trimSuffix "m" $cpu)) 1000) -}}
{{- else -}}
{{- max 1 (int (floor $cpu)) -}}
{{- end -}}
{{- end -}}

{{/* Which needs count: those of jobs that the workers may run. */}}
{{- define "gristmill.kinds" -}}
{{- toYaml (.Values.scaling.requires | default (concat (list "any") (ternary (list "1 GPU") list (gt (int .Values.worker.gpus) 0)))) -}}
{{- end -}}

{{/* The roles that run. */}}
{{- define "gristmill.roles" -}}
{{- toYaml (concat (list "worker" "reducer") (ternary (list "portal") list .Values.portal.enabled)) -}}
{{- end -}}

{{- define "gristmill.name" -}}
{{- if .role }}{{ .Release.Name }}-{{ .role }}{{ else }}{{ .Release.Name }}{{ end -}}
{{- end -}}

{{/* Labels that select; `role` is worker, reducer, portal or absent. */}}
{{- define "gristmill.labels" -}}
app.kubernetes.io/name: gristmill
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "gristmill.serviceAccount" -}}
{{- $own := index .Values .role -}}
{{- $own.serviceAccount.name | default (include "gristmill.name" .) -}}
{{- end -}}

{{- define "gristmill.image" -}}
{{- $own := index .Values .role -}}
{{- $name := ternary "gristmill-worker" "gristmill" (eq .role "worker") -}}
{{- $suffix := ternary "-cuda" "" (gt (int ($own.gpus | default 0)) 0) -}}
{{- $own.image | default (printf "%s%s:%s%s" .Values.images.prefix $name (.Values.images.tag | default .Chart.AppVersion) $suffix) -}}
{{- end -}}

{{/* What the pods of all roles have in common: metadata. */}}
{{- define "gristmill.podMetadata" -}}
{{- $own := index .Values .role -}}
labels:
  {{- include "gristmill.labels" . | nindent 2 }}
  {{- with $own.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- if ne .role "portal" }}
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
{{- $own := index .Values .role -}}
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
          values: {{ toJson .Values.images.architectures }}
{{- end -}}

{{/* What the containers of all roles have in common. */}}
{{- define "gristmill.container" -}}
{{- $own := index .Values .role -}}
image: {{ include "gristmill.image" . }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
envFrom:
  - configMapRef:
      name: {{ .Release.Name | quote }}
  {{- if .Values.queue.rabbitmq.enabled }}
  - secretRef:
      name: {{ .Values.queue.rabbitmq.secret | quote }}
  {{- end }}
  {{- with .Values.environmentFrom }}
  {{- toYaml . | nindent 2 }}
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
{{- $_ := set (index $resources $kind) "nvidia.com/gpu" (toString $own.gpus) }}
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
  {{- with $own.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Environment of all roles; services/cli/src/settings.rs lists every variable. */}}
{{- define "gristmill.settings" -}}
{{- $settings := dict "GRISTMILL_LISTEN" "0.0.0.0:9464" "GRISTMILL_LOG_FORMAT" "json" "GRISTMILL_STORE" .Values.store -}}
{{- with .Values.region }}{{ $_ := set $settings "AWS_REGION" . }}{{ end -}}
{{- with .Values.queue.sqs.prefix }}{{ $_ := set $settings "GRISTMILL_QUEUE" (printf "sqs://%s" .) }}{{ end -}}
{{- toYaml (merge (deepCopy .Values.environment) $settings) -}}
{{- end -}}
