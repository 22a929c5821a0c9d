//! User objects: objects of the program that live as long as a graph needs them.

use super::{State, named, state};
use crate::entry::{Out, Outcome, refuse_if};
use crate::handles::{Key, Named, Table};
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::ffi::c_void;

/// An object with its references.
pub struct User {
    destroy: CUhostFn,
    data: usize,
    references: u64,
}

impl Named for User {
    const KIND: u8 = 12;
}

/// The objects, and how many references each graph has.
#[derive(Default)]
pub struct Users {
    table: Table<User>,
    of_graph: HashMap<(u64, u64), u64>,
}

/// The program's destructor, to be called when no lock is held.
pub struct Last(CUhostFn, usize);

impl Last {
    pub fn call(self) {
        if let Self(Some(destroy), data) = self {
            // SAFETY: the program gave this function to be called with this pointer at the end.
            unsafe { destroy(data as *mut c_void) }
        }
    }
}

impl Users {
    fn change(&mut self, key: Key<User>, by: i64) -> Result<Option<Last>, CUresult> {
        let user = self.table.get_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let left = user.references.checked_add_signed(by).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        user.references = left;
        if left > 0 {
            return Ok(None);
        }
        Ok(self.table.remove(key).map(|user| Last(user.destroy, user.data)))
    }

    /// A graph is destroyed and gives up its references.
    pub fn graph_ends(&mut self, graph: u64) -> Vec<Last> {
        let all: Vec<_> = self.table.iter().map(|(key, _)| key).collect();
        let mut last = Vec::new();
        for key in all {
            if let Some(count) = self.of_graph.remove(&(graph, key.id())) {
                last.extend(self.change(key, -(count as i64)).ok().flatten());
            }
        }
        last
    }
}

pub fn cuUserObjectCreate(
    object_out: Out<CUuserObject>,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initial_refcount: u32,
    flags: u32,
) -> Outcome {
    object_out.require()?;
    let counted = (1..=i32::MAX as u32).contains(&initial_refcount);
    if destroy.is_none() || !counted || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let user = User { destroy, data: ptr as usize, references: u64::from(initial_refcount) };
    let new = state().users.table.insert(user).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    object_out.set(CUuserObject(new.to_pointer()))
}

pub fn cuUserObjectRetain(object: CUuserObject, count: u32) -> Outcome {
    refuse_if(count == 0)?;
    state().users.change(named(object.0)?, i64::from(count)).map(|_| ())
}

pub fn cuUserObjectRelease(object: CUuserObject, count: u32) -> Outcome {
    refuse_if(count == 0)?;
    let last = state().users.change(named(object.0)?, -i64::from(count))?;
    if let Some(last) = last {
        last.call();
    }
    Ok(())
}

pub fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Outcome {
    let (graph, object): (_, Key<User>) = (named(graph.0)?, named(object.0)?);
    refuse_if(count == 0 || flags & !CU_GRAPH_USER_OBJECT_MOVE != 0)?;
    let State { graphs, users, .. } = &mut *state();
    graphs.graph(graph)?;
    if flags & CU_GRAPH_USER_OBJECT_MOVE == 0 {
        users.change(object, i64::from(count))?;
    } else if users.table.get(object).is_none() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    *users.of_graph.entry((graph.id(), object.id())).or_default() += u64::from(count);
    Ok(())
}

pub fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) -> Outcome {
    let (graph, object): (super::GraphKey, Key<User>) = (named(graph.0)?, named(object.0)?);
    let mut state = state();
    let held = state.users.of_graph.get_mut(&(graph.id(), object.id()));
    let held = held.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    *held = held.checked_sub(u64::from(count)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let last = state.users.change(object, -i64::from(count))?;
    drop(state);
    if let Some(last) = last {
        last.call();
    }
    Ok(())
}
