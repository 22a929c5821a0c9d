/* An auditor of the dynamic linker (rtld-audit), as profilers are: it only says that it is there. */
unsigned la_version(unsigned version) { return version; }
