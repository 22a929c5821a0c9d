//! Families of GPU memory: what a process's memory is used for. Its shim counts them, for display alone.

/// A family beside plain allocations, which are the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Managed memory (`cuMemAllocManaged`).
    Managed,
    /// Arrays and mipmapped arrays.
    Arrays,
    /// Memory that pools and graphs have reserved.
    Pools,
    /// Physical allocations (`cuMemCreate`), and memory of other processes that is charged here.
    Physical,
    /// Contexts, with the heaps and buffers that their limits reserve.
    Contexts,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 5] =
        [Family::Managed, Family::Arrays, Family::Pools, Family::Physical, Family::Contexts];

    /// Its name on a screen and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Managed => "managed",
            Family::Arrays => "arrays",
            Family::Pools => "pools",
            Family::Physical => "physical",
            Family::Contexts => "contexts",
        }
    }
}
