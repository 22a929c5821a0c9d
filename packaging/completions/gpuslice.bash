# Completion of gpuslice in bash: the program itself knows its words, and the slices and GPUs of this node.
source <(GPUSLICE_COMPLETE=bash gpuslice)
