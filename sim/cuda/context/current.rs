//! The stack of contexts of each thread.

use super::{Context, table};
use crate::entry::{Out, Outcome};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUresult};
use std::cell::{Cell, RefCell};

thread_local! {
    /// The top of the stack, kept apart: it is what every call asks for.
    static TOP: Cell<Option<&'static Context>> = const { Cell::new(None) };
    /// The contexts below the top, the lowest first.
    static BELOW: RefCell<Vec<Option<&'static Context>>> = const { RefCell::new(Vec::new()) };
}

/// The current context of the calling thread, if it has one that lives.
pub fn current() -> Result<&'static Context, CUresult> {
    match TOP.get() {
        Some(context) if context.is_alive() => Ok(context),
        Some(_) => Err(CUresult::ERROR_CONTEXT_IS_DESTROYED),
        None => Err(CUresult::ERROR_INVALID_CONTEXT),
    }
}

pub fn push(context: &'static Context) {
    if let Some(top) = TOP.replace(Some(context)) {
        BELOW.with_borrow_mut(|below| below.push(Some(top)));
    }
}

fn pop() -> Option<&'static Context> {
    let next = BELOW.with_borrow_mut(Vec::pop).flatten();
    TOP.replace(next)
}

/// Takes a context that ends off the top of this thread's stack.
pub fn pop_if_top(context: &Context) {
    if TOP.get().is_some_and(|top| top.serial == context.serial) {
        pop();
    }
}

pub fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Outcome {
    push(table::find(ctx)?);
    Ok(())
}
pub use cuCtxPushCurrent_v2 as cuCtxPushCurrent;

pub fn cuCtxPopCurrent_v2(pctx: Out<CUcontext>) -> Outcome {
    let top = pop().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    pctx.set_if_wanted(top.handle());
    Ok(())
}
pub use cuCtxPopCurrent_v2 as cuCtxPopCurrent;

pub fn cuCtxSetCurrent(ctx: CUcontext) -> Outcome {
    if ctx.0.is_null() {
        pop();
    } else {
        TOP.set(Some(table::find(ctx)?));
    }
    Ok(())
}

pub fn cuCtxGetCurrent(pctx: Out<CUcontext>) -> Outcome {
    let null = CUcontext(std::ptr::null_mut());
    pctx.set(TOP.get().map_or(null, Context::handle))
}

pub fn cuCtxGetDevice(device: Out<CUdevice>) -> Outcome {
    device.set(current()?.device)
}

pub fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) -> Outcome {
    device.set(super::named_or_current(ctx)?.device)
}
