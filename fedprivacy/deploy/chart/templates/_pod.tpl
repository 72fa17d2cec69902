{{/* A pod without root, capabilities or token of the cluster. Takes root, and pod of the values. */}}
{{- define "fedprivacy.pod" -}}
{{- $root := .root }}{{ $pod := .pod -}}
metadata:
  labels:
    app.kubernetes.io/instance: {{ $root.Release.Name }}
    app.kubernetes.io/component: {{ $pod.name }}
    {{- if and $pod.lasting (not $pod.besides) }}
    fedprivacy/lasting: "true"
    {{- end }}
  annotations:
    checksum/files: {{ include (print $root.Template.BasePath "/files.yaml") $root | sha256sum }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: {{ eq $pod.reaches "client" }}  # the client's address without DNS, through which records could leave
  {{- if $pod.job }}
  restartPolicy: OnFailure
  {{- end }}
  {{- if $pod.besides }}
  affinity:  # the volume is on the node of who writes to it
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              app.kubernetes.io/instance: {{ $root.Release.Name }}
              fedprivacy/lasting: "true"
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $root.Values.user }}
    runAsGroup: {{ $root.Values.user }}
    fsGroup: {{ $root.Values.user }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    {{- range $pod.containers }}
    - name: {{ .name }}
      image: {{ required (printf "set images.%s to an image by its digest" .image) (index $root.Values.images .image) | quote }}
      {{- with .command }}
      command: {{ toJson . }}
      {{- end }}
      {{- with .args }}
      args: {{ toJson . }}
      {{- end }}
      workingDir: {{ $root.Values.folder }}
      env:
        {{- range $name, $value := .environment }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- if eq $pod.reaches "client" }}
        - {name: NODE, value: "$({{ printf "%s-client" $root.Release.Name | upper | replace "-" "_" | replace "." "_" }}_SERVICE_HOST)"}
        {{- end }}
        {{- if $pod.job }}
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources:
        requests: {cpu: 100m, memory: 256Mi}
        limits:
          memory: {{ .memory }}
          {{- if and .gpu $root.Values.gpus }}
          nvidia.com/gpu: {{ $root.Values.gpus }}
          {{- end }}
      {{- with .probe }}
      startupProbe: {exec: {command: {{ toJson . }}}, periodSeconds: 10, timeoutSeconds: 10, failureThreshold: 30}
      readinessProbe: {exec: {command: {{ toJson . }}}, periodSeconds: 30, timeoutSeconds: 10}
      livenessProbe: {exec: {command: {{ toJson . }}}, periodSeconds: 30, timeoutSeconds: 10}
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- range .mounts }}
        {{- if eq .kind "state" }}
        - {name: state, mountPath: {{ .path }}, subPath: {{ .name }}}
        {{- else if eq .kind "secret" }}
        - {name: secret, mountPath: {{ .path }}, subPath: {{ .name }}, readOnly: true}
        {{- else if eq .kind "records" }}
        - {name: records, mountPath: {{ .path }}, readOnly: true}
        {{- else if or ($root.Files.Get .name) ($root.Files.Glob (printf "%s/**" .name)) }}
        - {name: files, mountPath: {{ .path }}, subPath: {{ .name }}, readOnly: true}
        {{- end }}
        {{- end }}
        {{- if $pod.job }}
        - {name: backup, mountPath: /backup}
        {{- end }}
    {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- if $pod.lasting }}
    - {name: state, persistentVolumeClaim: {claimName: {{ $root.Release.Name }}-state}}
    {{- else }}
    - {name: state, emptyDir: {}}
    {{- end }}
    - {name: secret, secret: {secretName: {{ $root.Values.secret }}, defaultMode: 0440}}
    - name: files
      configMap:
        name: {{ $root.Release.Name }}-files
        items:
          {{- range $path := fromJsonArray (include "fedprivacy.paths" $root) }}
          - {key: {{ replace "/" "__" $path }}, path: {{ $path }}}
          {{- end }}
    {{- range $pod.containers }}{{ range .mounts }}{{ if eq .kind "records" }}
    - name: records
      persistentVolumeClaim:
        claimName: {{ required "set records to the volume claim that holds the records" $root.Values.records }}
        readOnly: true
    {{- end }}{{ end }}{{ end }}
    {{- if $pod.job }}
    - {name: backup, persistentVolumeClaim: {claimName: {{ $root.Values.backup.claim }}}}
    {{- end }}
{{- end }}

{{/* Paths of the files of this folder that any container reads, as a list in JSON. */}}
{{- define "fedprivacy.paths" -}}
{{- $paths := dict }}
{{- range .Values.pods }}{{ range .containers }}{{ range .mounts }}{{ if eq .kind "file" }}
{{- range $path, $_ := $.Files.Glob .name }}{{ $_ := set $paths $path 1 }}{{ end }}
{{- range $path, $_ := $.Files.Glob (printf "%s/**" .name) }}{{ $_ := set $paths $path 1 }}{{ end }}
{{- end }}{{ end }}{{ end }}{{ end }}
{{- keys $paths | sortAlpha | toJson }}
{{- end }}
