/* A library that is linked to the driver, as frameworks are. */
extern int cuMemAlloc_v2(unsigned long long *, unsigned long);
void *plugin_allocator(void) { return (void *)cuMemAlloc_v2; }
