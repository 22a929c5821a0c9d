//! The program `gpuslice`: the commands of [`gpuslice_ctl`].

fn main() -> std::process::ExitCode {
    gpuslice_ctl::main()
}
