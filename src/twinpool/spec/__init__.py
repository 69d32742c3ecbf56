"""Layer and model geometry from HF `config.json`: shapes and bytes; knows no pool and no tensor."""
