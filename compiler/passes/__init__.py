"""The passes, in the order in which ``draftline.compiler.compile.passes`` lists them; one small file each."""
