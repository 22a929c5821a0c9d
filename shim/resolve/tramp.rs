//! Machine code of the exported functions (x86-64).
//!
//! One that passes is like an entry of a procedure linkage table: jump through the slot, arguments untouched, stack
//! untouched, whatever the signature is. Only while the slot is empty does it take the long way: save
//! the argument registers, let [`resolve_driver`] or [`resolve_nvml`] fill the slot, restore, jump.
//! One that is hooked jumps to the hook, with one look at the caller before.
//!
//! Free to use between caller and callee are rax (no function of the tables takes variable
//! arguments), r10 and r11; the arguments are in rdi, rsi, rdx, rcx, r8, r9 and xmm0 to xmm7, the rest
//! above the return address. A port to another machine replaces this file.

use super::{Library, Slot};
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_void};

/// Defines `$name` as an exported function that jumps through its slot.
#[macro_export]
macro_rules! trampoline {
    ($name:ident, $resolve:ident) => {
        #[doc = concat!("The driver's own `", stringify!($name), "`.")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11, qword ptr [rip + {slot}]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "lea r11, [rip + {slot}]",
                "lea rax, [rip + 3f]",
                "jmp {resolve}",
                "3:",
                concat!(".asciz \"", stringify!($name), "\""),
                slot = sym $crate::resolve::slot::$name,
                resolve = sym $crate::resolve::tramp::$resolve,
            )
        }
    };
}

/// Defines `$name` as an exported function that jumps to `$hook`, or through its slot if the real library
/// calls itself (see [`super::text`]).
#[macro_export]
macro_rules! hooked {
    ($name:ident, $hook:path, $text:ident, $resolve:ident) => {
        #[doc = concat!("The hook before the real `", stringify!($name), "`.")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11, qword ptr [rsp]", // the return address of the call
                "sub r11, qword ptr [rip + {text}]",
                "cmp r11, qword ptr [rip + {text} + 8]",
                "jb 4f",
                "mov r11, qword ptr [rsp]",
                "sub r11, qword ptr [rip + {own}]",
                "cmp r11, qword ptr [rip + {own} + 8]",
                "jae {hook}",
                "4:",
                "mov r11, qword ptr [rip + {slot}]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "lea r11, [rip + {slot}]",
                "lea rax, [rip + 3f]",
                "jmp {resolve}",
                "3:",
                concat!(".asciz \"", stringify!($name), "\""),
                text = sym $crate::resolve::text::$text,
                own = sym $crate::resolve::text::OWN,
                hook = sym $hook,
                slot = sym $crate::resolve::slot::$name,
                resolve = sym $crate::resolve::tramp::$resolve,
            )
        }
    };
}

macro_rules! resolver {
    ($name:ident, $fill:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// In: r11 the slot, rax its name, everything else as at the entry of the function.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "sub rsp, 128", // with the seven pushes and the return address: a multiple of 16
                "movups xmmword ptr [rsp], xmm0",
                "movups xmmword ptr [rsp + 16], xmm1",
                "movups xmmword ptr [rsp + 32], xmm2",
                "movups xmmword ptr [rsp + 48], xmm3",
                "movups xmmword ptr [rsp + 64], xmm4",
                "movups xmmword ptr [rsp + 80], xmm5",
                "movups xmmword ptr [rsp + 96], xmm6",
                "movups xmmword ptr [rsp + 112], xmm7",
                "mov rdi, r11",
                "mov rsi, rax",
                "call {fill}",
                "mov r11, rax",
                "movups xmm0, xmmword ptr [rsp]",
                "movups xmm1, xmmword ptr [rsp + 16]",
                "movups xmm2, xmmword ptr [rsp + 32]",
                "movups xmm3, xmmword ptr [rsp + 48]",
                "movups xmm4, xmmword ptr [rsp + 64]",
                "movups xmm5, xmmword ptr [rsp + 80]",
                "movups xmm6, xmmword ptr [rsp + 96]",
                "movups xmm7, xmmword ptr [rsp + 112]",
                "add rsp, 128",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rbp",
                "jmp r11",
                fill = sym $fill,
            )
        }
    };
}
resolver!(resolve_driver, fill_driver, "The long way of a trampoline into the driver.");
resolver!(resolve_nvml, fill_nvml, "The long way of a trampoline into NVML.");

unsafe extern "C" fn fill_driver(slot: &Slot, name: *const c_char) -> *mut c_void {
    // SAFETY: a trampoline passes its own NUL-terminated name.
    slot.get(Library::Driver, unsafe { CStr::from_ptr(name) })
}

unsafe extern "C" fn fill_nvml(slot: &Slot, name: *const c_char) -> *mut c_void {
    // SAFETY: as in `fill_driver`.
    slot.get(Library::Nvml, unsafe { CStr::from_ptr(name) })
}
