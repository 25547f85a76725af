package api

func (s *Server) serveDocs(x *exchange) error { return x.text("docs\n") }
