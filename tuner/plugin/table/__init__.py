"""Decision tables as this project's plugin reads them: records, reader, writer."""
