# Completion of gpuslice in fish: the program itself knows its words, and the slices and GPUs of this node.
GPUSLICE_COMPLETE=fish gpuslice | source
