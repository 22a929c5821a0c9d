//! Hostile images and callers, through the real hook under real runtimes.
//!
//! # Problem
//! The hook runs as root among files that an image's author has chosen. The worst vulnerabilities of
//! container toolkits were of this kind: a name that meant one file when checked and another when
//! used, or a variable of the image that reached a program of the host.
//!
//! # Idea
//! A table of images, each with its expected result. Beside each image is a canary: directories
//! that look like the hook's targets, on the host's side of the image's links. A run passes when three
//! conditions hold: the container behaves as the table says; every inode of the canary and the host's
//! mount table are unchanged; each system call of the hook (all are traced) is in its plan.

mod callers;
mod cases;
mod concurrency;
mod image_builder;
mod images;
mod inherited;
mod snapshot;
mod trace;
mod unresponsive;
