{{- define "freshet.labels" -}}
app.kubernetes.io/name: freshet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "freshet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "freshet.pod" -}}
enableServiceLinks: false # its variables would begin like settings
securityContext: { runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: { type: RuntimeDefault } }
{{- end }}

{{- define "freshet.container" -}}
image: {{ include "freshet.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: { name: {{ .Values.secret }} }
securityContext: { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: [ALL] } }
{{- end }}

{{- define "freshet.env" -}}
- { name: FRESHET_CONFIG, value: /etc/freshet/freshet.toml }
- { name: FRESHET_DATA_DIR, value: /data }
- { name: FRESHET_LOG__FORMAT, value: json }
{{- end }}

{{- define "freshet.probes" -}}
startupProbe: { httpGet: { path: /healthz, port: {{ . }} }, periodSeconds: 2, failureThreshold: 60 }
livenessProbe: { httpGet: { path: /healthz, port: {{ . }} }, periodSeconds: 10, failureThreshold: 6 }
readinessProbe: { httpGet: { path: /readyz, port: {{ . }} }, periodSeconds: 5 }
{{- end }}

{{- define "freshet.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: { matchLabels: { app.kubernetes.io/instance: {{ .release }}, app.kubernetes.io/component: {{ .component }} } }
{{- end }}
