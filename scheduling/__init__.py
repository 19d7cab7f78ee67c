from scheduling.compiled import prefer_compiled

prefer_compiled()  # before anything of the engine is imported
