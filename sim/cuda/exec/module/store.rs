//! The tables of modules, functions, libraries and kernels.

use super::super::{hold, ptx, spare};
use crate::allocations::{self, Allocation, Home, Kind};
use crate::context::{Context, current};
use crate::driver::{process, strict};
use crate::handles::{Key, Named, Table};
use crate::vram::{Chunk, Pages};
use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::ContextId;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A module loaded into a context.
pub struct Module {
    pub decl: Arc<ptx::Module>,
    context: &'static Context,
    functions: HashMap<CString, FunctionKey>,
    /// Where the global variables lie, once one was asked for.
    memory: Option<u64>,
    /// Where its code lies; nowhere before a function of it is loaded.
    image: Option<Arc<Chunk>>,
}

impl Module {
    fn new(context: &'static Context, decl: Arc<ptx::Module>) -> Result<Self, CUresult> {
        let image = match strict::lazy() {
            Some(_) => None,
            None => image_of(context, &decl)?,
        };
        Ok(Self { decl, context, functions: HashMap::new(), memory: None, image })
    }
}

/// Memory for the code of a module.
fn image_of(context: &Context, decl: &ptx::Module) -> Result<Option<Arc<Chunk>>, CUresult> {
    match process()?.machine.module_bytes(decl.image_bytes) {
        0 => Ok(None),
        bytes => spare::take_chunk(context.gpu().index, bytes).map(Some),
    }
}

/// Memory for the variables of a module.
fn variables(context: &'static Context, bytes: u64) -> Result<u64, CUresult> {
    let pages = Pages::new(context.gpu().index, bytes.max(1))?;
    let address = pages.address;
    let allocation = Allocation::new(context, bytes, Kind::Module, Home::Pages(pages));
    allocations::insert(address, allocation);
    Ok(address)
}

/// A kernel in a module.
pub struct Function {
    pub entry: ptx::Entry,
    pub name: CString,
    pub module: ModuleKey,
    pub context: ContextId,
    /// The library kernel it was made from.
    pub kernel: Option<KernelKey>,
    /// Its duration is its first argument.
    pub spins: bool,
    /// Its code is on the device.
    pub loaded: AtomicBool,
    /// Values the program has set, by attribute; the largest attribute is 17.
    pub set: [AtomicI32; 18],
}

/// A library.
pub struct Library {
    pub decl: Arc<ptx::Module>,
    kernels: HashMap<CString, KernelKey>,
    modules: HashMap<ContextId, ModuleKey>,
}

/// A kernel of a library.
pub struct Kernel {
    pub library: Key<Library>,
    pub function: Arc<Function>,
}

impl Named for Module {
    const KIND: u8 = 5;
}
impl Named for Arc<Function> {
    const KIND: u8 = 6;
}
impl Named for Library {
    const KIND: u8 = 7;
}
impl Named for Kernel {
    const KIND: u8 = 8;
}

pub type ModuleKey = Key<Module>;
pub type FunctionKey = Key<Arc<Function>>;
pub type KernelKey = Key<Kernel>;

/// What an attribute reads as until it is set.
pub const NOT_SET: i32 = i32::MIN;

struct Store {
    modules: Table<Module>,
    functions: Table<Arc<Function>>,
    libraries: Table<Library>,
    kernels: Table<Kernel>,
}

static STORE: LazyLock<RwLock<Store>> = LazyLock::new(|| {
    RwLock::new(Store {
        modules: Table::new(),
        functions: Table::new(),
        libraries: Table::new(),
        kernels: Table::new(),
    })
});

fn read() -> RwLockReadGuard<'static, Store> {
    STORE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Store> {
    STORE.write().unwrap_or_else(PoisonError::into_inner)
}

/// A function, for a launch or a question about it.
pub fn function_of(key: FunctionKey) -> Result<Arc<Function>, CUresult> {
    read().functions.get(key).cloned().ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// What a module declares.
pub fn declared(key: ModuleKey) -> Result<Arc<ptx::Module>, CUresult> {
    let store = read();
    let module = store.modules.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    Ok(Arc::clone(&module.decl))
}

/// Loads a module into a context.
pub fn load(context: &'static Context, decl: Arc<ptx::Module>) -> Result<ModuleKey, CUresult> {
    let module = Module::new(context, decl)?;
    write().modules.insert(module).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Unloads a module with its functions and variables.
pub fn unload(key: ModuleKey) -> Result<(), CUresult> {
    let module = write().remove_module(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Some(address) = module.memory {
        // It may have gone with its context.
        drop(allocations::remove(address, |one| one.kind == Kind::Module));
    }
    Ok(())
}

impl Store {
    fn remove_module(&mut self, key: ModuleKey) -> Option<Module> {
        let module = self.modules.remove(key)?;
        for function in module.functions.values() {
            self.functions.remove(*function);
        }
        Some(module)
    }
}

/// Forgets the modules of a context that ends; its memory goes with it.
pub fn context_ends(context: ContextId) {
    let mut store = write();
    let gone: Vec<_> = store
        .modules
        .iter()
        .filter_map(|(key, module)| (module.context.id == context).then_some(key))
        .collect();
    for key in gone {
        store.remove_module(key);
    }
    let libraries: Vec<_> = store.libraries.iter().map(|(key, _)| key).collect();
    for key in libraries {
        if let Some(library) = store.libraries.get_mut(key) {
            library.modules.remove(&context);
        }
    }
}

/// The entry of that name; an opaque module has every one.
fn entry(decl: &ptx::Module, name: &CStr) -> Result<ptx::Entry, CUresult> {
    let name = name.to_str().map_err(|_| CUresult::ERROR_NOT_FOUND)?;
    if decl.opaque && !name.is_empty() {
        return Ok(ptx::Entry::named(name));
    }
    let found = decl.entries.iter().find(|entry| entry.name == name);
    found.cloned().ok_or(CUresult::ERROR_NOT_FOUND)
}

fn new_function(
    entry: ptx::Entry,
    module: ModuleKey,
    context: ContextId,
    kernel: Option<KernelKey>,
    name: &CStr,
) -> Function {
    let spins = entry.name.contains("spin");
    let set = [const { AtomicI32::new(NOT_SET) }; 18];
    let loaded = AtomicBool::new(strict::lazy().is_none());
    Function { entry, name: name.to_owned(), module, context, kernel, spins, loaded, set }
}

/// Loads a function if it is not, and the module's code with the first one. The caller is blocked meanwhile, and with
/// it other calls in the context.
pub fn load_function(function: &Function) -> Result<(), CUresult> {
    if function.loaded.load(Ordering::Acquire) {
        return Ok(());
    }
    let _held = hold(function.context);
    // Another thread may have been loading it.
    if function.loaded.load(Ordering::Acquire) {
        return Ok(());
    }
    strict::block(strict::lazy().unwrap_or_default());
    let module = |store: &Store| {
        let module = store.modules.get(function.module).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let wanted = module.image.is_none().then(|| (module.context, Arc::clone(&module.decl)));
        Ok::<_, CUresult>(wanted)
    };
    let wanted = module(&read())?;
    if let Some((context, decl)) = wanted {
        let image = image_of(context, &decl)?;
        if let Some(module) = write().modules.get_mut(function.module) {
            module.image = module.image.take().or(image);
        }
    }
    function.loaded.store(true, Ordering::Release);
    Ok(())
}

/// A module's kernel by name.
pub fn function(key: ModuleKey, name: &CStr) -> Result<FunctionKey, CUresult> {
    function_for(key, name, None)
}

fn function_for(
    key: ModuleKey,
    name: &CStr,
    kernel: Option<KernelKey>,
) -> Result<FunctionKey, CUresult> {
    let mut store = write();
    let module = store.modules.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Some(known) = module.functions.get(name) {
        return Ok(*known);
    }
    let entry = entry(&module.decl, name)?;
    let function = Arc::new(new_function(entry, key, module.context.id, kernel, name));
    let new = store.functions.insert(function).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    if let Some(module) = store.modules.get_mut(key) {
        module.functions.insert(name.to_owned(), new);
    }
    Ok(new)
}

/// Address and size of a module's global variable.
pub fn global(key: ModuleKey, name: &CStr) -> Result<(u64, usize), CUresult> {
    let name = name.to_str().map_err(|_| CUresult::ERROR_NOT_FOUND)?;
    let mut store = write();
    let module = store.modules.get_mut(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let (offset, bytes) = place(&module.decl, name).ok_or(CUresult::ERROR_NOT_FOUND)?;
    let base = match module.memory {
        Some(base) => base,
        None => {
            let all: u64 = module.decl.globals.iter().map(|one| room(one.bytes)).sum();
            *module.memory.insert(variables(module.context, all)?)
        }
    };
    Ok((base + offset, bytes))
}

/// Bytes a variable takes: variables begin at multiples of 256.
fn room(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(256).max(256)
}

/// Offset and size of a variable among all of the module's.
fn place(decl: &ptx::Module, name: &str) -> Option<(u64, usize)> {
    let index = decl.globals.iter().position(|one| one.name == name)?;
    let offset = decl.globals[..index].iter().map(|one| room(one.bytes)).sum();
    Some((offset, decl.globals[index].bytes))
}

/// Loads a library.
pub fn load_library(decl: Arc<ptx::Module>) -> Result<Key<Library>, CUresult> {
    let library = Library { decl, kernels: HashMap::new(), modules: HashMap::new() };
    write().libraries.insert(library).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Unloads a library with its kernels and the modules made of it.
pub fn unload_library(key: Key<Library>) -> Result<(), CUresult> {
    let mut store = write();
    let library = store.libraries.remove(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    for kernel in library.kernels.values() {
        store.kernels.remove(*kernel);
    }
    drop(store);
    library.modules.into_values().try_for_each(unload)
}

/// A library's kernel by name.
pub fn kernel(key: Key<Library>, name: &CStr) -> Result<KernelKey, CUresult> {
    let mut store = write();
    let library = store.libraries.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Some(known) = library.kernels.get(name) {
        return Ok(*known);
    }
    let entry = entry(&library.decl, name)?;
    // A kernel is in no module and no context yet; these two are never looked at.
    let nowhere = ContextId::from_bits(u64::MAX);
    let no_module = Key::none();
    let function = Arc::new(new_function(entry, no_module, nowhere, None, name));
    let new = store.kernels.insert(Kernel { library: key, function });
    let new = new.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    if let Some(library) = store.libraries.get_mut(key) {
        library.kernels.insert(name.to_owned(), new);
    }
    Ok(new)
}

/// What the library declares.
pub fn kernels(key: Key<Library>) -> Result<Arc<ptx::Module>, CUresult> {
    let store = read();
    let library = store.libraries.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    Ok(Arc::clone(&library.decl))
}

/// A kernel's library and its properties.
pub fn kernel_of(key: KernelKey) -> Result<(Key<Library>, Arc<Function>), CUresult> {
    let store = read();
    let kernel = store.kernels.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    Ok((kernel.library, Arc::clone(&kernel.function)))
}

/// The functions made of a kernel, in any context.
pub fn functions_of_kernel(key: KernelKey) -> Vec<Arc<Function>> {
    let store = read();
    let made = store.functions.iter().filter(|(_, function)| function.kernel == Some(key));
    made.map(|(_, function)| Arc::clone(function)).collect()
}

/// The library as a module of the current context.
pub fn module_of(key: Key<Library>) -> Result<ModuleKey, CUresult> {
    let context = current()?;
    let mut store = write();
    let library = store.libraries.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Some(known) = library.modules.get(&context.id) {
        return Ok(*known);
    }
    let decl = Arc::clone(&library.decl);
    let module = Module::new(context, decl)?;
    let module = store.modules.insert(module).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    if let Some(library) = store.libraries.get_mut(key) {
        library.modules.insert(context.id, module);
    }
    Ok(module)
}

/// The library's kernel as a function of the current context.
pub fn function_of_kernel(key: KernelKey) -> Result<FunctionKey, CUresult> {
    let (library, properties) = kernel_of(key)?;
    let function = function_for(module_of(library)?, &properties.name, Some(key))?;
    // Attributes set on the kernel hold for the function made of it.
    if let Ok(made) = function_of(function) {
        for (to, from) in made.set.iter().zip(&properties.set) {
            let value = from.load(Ordering::Relaxed);
            if value != NOT_SET {
                to.store(value, Ordering::Relaxed);
            }
        }
    }
    Ok(function)
}

/// What a launch names: a function, or a library kernel in the clothes of one.
pub fn launchable(
    pointer: *mut std::ffi::c_void,
) -> Result<(FunctionKey, Arc<Function>), CUresult> {
    let key = match FunctionKey::from_pointer(pointer) {
        Some(function) => function,
        None => {
            let kernel = KernelKey::from_pointer(pointer);
            function_of_kernel(kernel.ok_or(CUresult::ERROR_INVALID_HANDLE)?)?
        }
    };
    Ok((key, function_of(key)?))
}
