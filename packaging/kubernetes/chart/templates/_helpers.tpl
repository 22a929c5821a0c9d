{{- define "gpuslice.labels" -}}
app.kubernetes.io/name: gpuslice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gpuslice.selector" -}}
app.kubernetes.io/name: gpuslice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpuslice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Where agents write ConfigMaps. */ -}}
{{- define "gpuslice.configMapNamespace" -}}
{{ .Values.agent.configMapNamespace | default .Release.Namespace }}
{{- end }}

{{- /* Each term alone suffices, so each label is a term of its own. */ -}}
{{- define "gpuslice.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .Values.nodes }}
      - matchExpressions: [{{ toJson . }}]
      {{- end }}
{{- end }}
{{/* Labels as the text of a selector: a=b,c=d. */}}
{{- define "gpuslice.selectorText" -}}
{{- $all := list -}}
{{- range $key, $value := . }}{{ $all = append $all (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $all -}}
{{- end -}}

{{- define "gpuslice.schedulerConfigMap" -}}
gpuslice-scheduler-{{ include "gpuslice.schedulerConfiguration" . | sha256sum | trunc 10 }}
{{- end }}

{{- define "gpuslice.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: gpuslice-scheduler
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
    pluginConfig:
      # Nodes that have shares are filled first, so that whole nodes stay free.
      - name: NodeResourcesFit
        args:
          scoringStrategy:
            type: MostAllocated
            resources: [{ name: aliyun.com/gpu-mem, weight: 1 }]
{{- if .Values.extender.enabled }}
extenders:
  - urlPrefix: http://gpuslice-extender.{{ .Release.Namespace }}.svc:32766/gpushare-scheduler
    filterVerb: filter
    bindVerb: bind
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      - { name: aliyun.com/gpu-mem, ignoredByScheduler: false }
      - { name: aliyun.com/gpu-core.percentage, ignoredByScheduler: false }
{{- end }}
{{- end }}
