//! The API server as `kubectl` reaches it.
//!
//! A user's credentials may come from a token, a certificate, or a cloud's own program. kubectl knows them all, and a
//! plugin of kubectl runs where kubectl is. So the tools of administrators ask it, and read no kubeconfig themselves.

use super::objects::List;
use super::pages::{BEGINNINGS, Pages};
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::process::Command;

/// `kubectl`, with the options of a user that concern the cluster.
#[derive(Debug, Clone, Default)]
pub struct Kubectl {
    /// A program to run in its place.
    pub program: Option<String>,
    /// Arguments before the command, such as `--kubeconfig=FILE`.
    pub options: Vec<String>,
}

impl Kubectl {
    /// The list at a path of the API, read in pages.
    ///
    /// # Errors
    /// As [`Kubectl::get`], or the list has too many pages.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let mut begun = 1;
        loop {
            match self.pages(path) {
                // kubectl's word for the status 410.
                Err(error) if error.to_string().contains("(Expired)") && begun < BEGINNINGS => {
                    begun += 1;
                }
                done => return done,
            }
        }
    }

    fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let mut pages = Pages::of(path);
        while let Some(next) = pages.next() {
            pages.add(self.get(&next)?)?;
        }
        Ok(pages.done())
    }

    /// The object at a path of the API.
    ///
    /// # Errors
    /// kubectl is not there, reaches no server or may not read the path; its answer is no such object.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let program = self.program.as_deref().unwrap_or("kubectl");
        let mut command = Command::new(program);
        command.args(&self.options).args(["get", "--raw", path]);
        let output = match command.output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{program} is not in the PATH; it knows how to reach the cluster: install it")
            }
            output => output.with_context(|| format!("running {program}"))?,
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{program} get --raw {path}: {}", said.trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("the answer to GET {path}"))
    }
}
