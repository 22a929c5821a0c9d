//! Lists in pages: a cluster has more pods than one answer should have.
//!
//! All pages of a list are of one time. The server forgets that time after some minutes, and answers 410 then; the list
//! begins anew.

use super::objects::{List, ListMetadata};

/// Objects of a page.
const LIMIT: usize = 500;
/// Pages of a list, at most: three times as many pods as Kubernetes is made for.
const PAGES_MAX: usize = 900;
/// How often a list begins, at most.
pub const BEGINNINGS: usize = 3;

/// A list of which some pages have been read.
#[derive(Debug)]
pub struct Pages<T> {
    path: String,
    read: usize,
    all: List<T>,
}

impl<T> Pages<T> {
    /// No page of the list at a path of the API.
    #[must_use]
    pub fn of(path: &str) -> Pages<T> {
        Pages { path: path.to_owned(), read: 0, all: List::of(Vec::new()) }
    }

    /// The path of the next page; `None`: all have been read.
    #[must_use]
    pub fn next(&self) -> Option<String> {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        let first = format!("{}{joint}limit={LIMIT}", self.path);
        match self.all.metadata.next.as_str() {
            "" if self.read == 0 => Some(first),
            "" => None,
            next => Some(format!("{first}&continue={}", escaped(next))),
        }
    }

    /// Adds that page.
    ///
    /// # Errors
    /// The list has too many.
    pub fn add(&mut self, page: List<T>) -> anyhow::Result<()> {
        self.read += 1;
        anyhow::ensure!(self.read <= PAGES_MAX, "{} has more than {PAGES_MAX} pages", self.path);
        self.all.metadata = page.metadata;
        self.all.items.extend(page.items);
        Ok(())
    }

    /// The list, with the version from which a watch continues.
    #[must_use]
    pub fn done(self) -> List<T> {
        let version = self.all.metadata.resource_version;
        let metadata = ListMetadata { resource_version: version, next: String::new() };
        List { metadata, items: self.all.items }
    }
}

/// A text as part of a query.
#[must_use]
pub fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let one =
        |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::client::{Client, status};
    use super::super::kubectl::Kubectl;
    use super::*;
    use crate::http::{Plain, reply, serve};
    use hyper::body::Incoming;
    use hyper::{Request, StatusCode};
    use serde_json::{Value, json};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;

    /// A list of three pages whose server forgets its time so often, after the first page.
    async fn listed(forgets: usize) -> (anyhow::Result<List<Value>>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let (asked, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(forgets)));
        let count = asked.clone();
        let answer = move |request: Request<Incoming>| {
            asked.fetch_add(1, Ordering::Relaxed);
            let page = |items: Value, next: &str| {
                let metadata = json!({ "resourceVersion": "7", "continue": next });
                reply(StatusCode::OK, &json!({ "metadata": metadata, "items": items }))
            };
            std::future::ready(match request.uri().query().unwrap_or_default() {
                "fieldSelector=a&limit=500" => page(json!([1, 2]), "b="),
                "fieldSelector=a&limit=500&continue=b%3D" => match left.load(Ordering::Relaxed) {
                    0 => page(json!([3]), "c"),
                    _ => {
                        left.fetch_sub(1, Ordering::Relaxed);
                        reply(StatusCode::GONE, &json!({ "message": "too old" }))
                    }
                },
                "fieldSelector=a&limit=500&continue=c" => page(json!([4]), ""),
                other => panic!("{other}"),
            })
        };
        tokio::spawn(serve(listener, Plain, 4, answer, std::future::pending()));
        let client = Client::plain(&format!("http://{at}")).expect("a URL");
        (client.list("/pods?fieldSelector=a").await, count.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_list_is_read_in_pages_and_begins_anew_when_its_time_is_forgotten() {
        for (forgets, asked) in [(0, 3), (2, 2 + 2 + 3)] {
            let (list, requests) = listed(forgets).await;
            let list = list.expect("a list");
            assert_eq!(list.items, [1, 2, 3, 4].map(Value::from));
            assert_eq!((list.metadata.resource_version.as_str(), requests), ("7", asked));
        }
        let (list, requests) = listed(9).await;
        let gone = status(&list.expect_err("it never ends"));
        assert_eq!((gone, requests), (Some(StatusCode::GONE), 2 * BEGINNINGS));
    }

    #[test]
    fn kubectl_reads_pages_too() {
        let place = tempfile::tempdir().expect("a directory");
        let program = place.path().join("kubectl");
        let text = format!(
            r#"#!/bin/sh
case "$3" in
    "/pods?limit=500") echo '{{"metadata":{{"continue":"b"}},"items":[1]}}' ;;
    "/pods?limit=500&continue=b") [ -e {0}/old ] || {{ : >{0}/old
        echo 'Error from server (Expired): The provided continue parameter is too old' >&2; exit 1; }}
        echo '{{"metadata":{{}},"items":[2]}}' ;;
    *) exit 2 ;;
esac
"#,
            place.path().display()
        );
        std::fs::write(&program, text).expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("a program");
        let program = Some(program.display().to_string());
        let list = Kubectl { program, options: Vec::new() }.list::<Value>("/pods").expect("a list");
        assert_eq!(list.items, [1, 2].map(Value::from));
        assert!(place.path().join("old").exists());
    }

    #[test]
    fn texts_in_queries() {
        assert_eq!(escaped("gpuslice.io/claims=enabled,a"), "gpuslice.io%2Fclaims%3Denabled%2Ca");
    }

    #[test]
    fn a_list_without_an_end_is_given_up() {
        let mut pages = Pages::of("/pods");
        let page = || {
            let next = "same".to_owned();
            List { metadata: ListMetadata { next, ..ListMetadata::default() }, items: vec![1] }
        };
        assert!((0..PAGES_MAX).all(|_| pages.add(page()).is_ok()));
        assert!(pages.add(page()).is_err());
    }
}
