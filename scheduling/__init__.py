from scheduling.compiled import prefer

prefer()  # before anything of the engine is imported
