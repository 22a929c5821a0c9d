//! Hostile images and callers, through the real hook under real runtimes.
//!
//! # Problem
//! The hook is root and works among files an image's author has chosen. Every container toolkit's
//! worst holes were of this kind: a name that meant one file when it was looked at and another when
//! it was used, or a variable of the image's that reached a program of the host's.
//!
//! # Idea
//! A table of images, each with what must come of it. Beside every one lies a canary: directories
//! that look just like what the hook wants to write to, on the host's side of the image's links.
//! A run passes when the container did what the table says, the canary's every inode is as it
//! was, the host's mount table too, and each system call of the hook (all are traced) is in its plan.

mod callers;
mod cases;
mod crowd;
mod deaf;
mod images;
mod inherited;
mod lay;
mod snapshot;
mod trace;
