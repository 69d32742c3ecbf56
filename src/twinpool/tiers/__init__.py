"""Host and disk back-up of rows and slots; knows no tensor."""
