//! The program `gpuslice-k8s`: the commands of [`gpuslice_k8s`].

fn main() -> std::process::ExitCode {
    gpuslice_k8s::main()
}
